// Which thread serves which slice of which row of which token.
//
// By rows (always for q; for k and v of the flash layout and of calls of few rows): a block serves rows of
// one token.
//
//                     blockIdx.y = 0           1            2
//   blockIdx.x = t  [ q0 ... q15 ]  [ q16 ... q31 ]  [ k0..k7 v0..v7 ]    (QH 32, KH 8, 16 rows a block)
//                      |
//                      threadIdx.y = row in the block, threadIdx.x = slice of the row
//
// All blocks of the first rows come before all blocks of the next, so that at any time the device reads and
// writes a few long streams.
//
// By tokens (k and v of the split layouts): a block serves one row of a tile of tokens, as many as
// rows_per_block, and neighbouring lanes serve neighbouring tokens. Where those have neighbouring slots, as
// in a prefill, the single elements that lanes store for one head dimension lie next to each other and fill
// whole sectors; the transposition costs no shared memory and no barrier. Where slots are scattered each
// element is a sector of its own.
//
//   thread = token in the tile + tile_tokens * slice
//   block = tile + num_tiles * row, counted from blockIdx.y = blocks_by_row on
#pragma once

#include "launch_plan.h"

namespace kvrope {

template <typename Index>
struct ThreadWork {
  Index token;
  int row;    // 0..QH-1 query heads, then KH key heads, then KH value heads; from num_rows on: no work
  int slice;  // of the row
};

template <typename Index>
__device__ __forceinline__ ThreadWork<Index> work_of_thread(const BasicRopeCacheParams<Index>& p,
                                                            const LaunchPlan& plan) {
  const int block_y = static_cast<int>(blockIdx.y);
  if (block_y < plan.blocks_by_row) {
    const int row = block_y * plan.rows_per_block + static_cast<int>(threadIdx.y);
    const int end =
        plan.blocks_by_token == 0 ? plan.num_rows : p.num_q_heads;  // k and v rows: by tokens, and once
    return {blockIdx.x, row < end ? row : plan.num_rows, static_cast<int>(threadIdx.x)};
  }
  const uint32_t block = static_cast<uint32_t>(block_y - plan.blocks_by_row) * gridDim.x + blockIdx.x;
  const uint32_t kv_row = plan.num_tiles.quotient(block), tile = block - kv_row * plan.num_tiles.divisor;
  const uint32_t thread = threadIdx.y * plan.threads_per_row + threadIdx.x;
  const uint32_t tile_tokens = 1u << plan.tile_tokens_log2;
  const Index token = (Index{tile} << plan.tile_tokens_log2) + (thread & (tile_tokens - 1));
  const int row = p.num_q_heads + static_cast<int>(kv_row);
  return {token, token < p.num_kv_rows ? row : plan.num_rows,
          static_cast<int>(thread >> plan.tile_tokens_log2)};
}

}  // namespace kvrope
