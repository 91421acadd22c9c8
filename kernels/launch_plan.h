// The shape of a launch, decided on the host from the parameters alone.
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

constexpr int kMaxThreadsPerBlock = 512;
constexpr int kWarp = 32;
constexpr unsigned kFullWarp = 0xffffffffu;  // all its lanes
constexpr int kShortVectorBytes = 8, kLongVectorBytes = 16;
constexpr int kTileTokens = 16;  // as many as fill 16 bytes of fp8

// What kernels know of a call while they are compiled (call_form.cuh), in the terms of call_options.h.
enum class CallForm {
  general,           // nothing
  usual,             // usual options, no extensions
  plain,             // plain options, heads rotated whole, no extensions
  extended,          // plain options, heads rotated whole, some extensions
  extended_partial,  // plain options, heads rotated in part, some extensions
};

constexpr bool is_extended(CallForm form) {
  return form == CallForm::extended || form == CallForm::extended_partial;
}

// Which forms have kernels of their own, by the bytes of a vector and of one of its elements.
constexpr bool has_kernels(CallForm form, int vector_bytes, int element_bytes, bool is_neox) {
  switch (form) {
    case CallForm::plain:
      return vector_bytes >= kShortVectorBytes;
    case CallForm::usual:
      return vector_bytes == kLongVectorBytes && element_bytes == 2;
    case CallForm::extended:
    case CallForm::extended_partial:
      return vector_bytes >= kShortVectorBytes && element_bytes == 2 && is_neox;
    default:
      return true;
  }
}

// How many later rows a thread looks at where the last of a slot is kept (last_of_slot.cuh). Blocks of short
// vectors have at least a thread for each.
constexpr int later_rows_per_thread(int vector_bytes) {
  return vector_bytes <= kShortVectorBytes ? 1 : 2;
}

struct LaunchPlan {
  int vector_width;  // elements a thread moves at once: a power of two, at most 16 bytes of dtype
  CallForm form;
  bool use_pdl;             // set by launch_rope_cache, for it depends on the device
  bool keeps_last_of_slot;  // few rows: of those with one slot the last is kept (last_of_slot.cuh)
  bool values_are_apart;    // head dimensions of the value cache are not neighbours
  bool values_are_tiled;    // where they are apart, from some number of rows on (value_tile.cuh)

  // Blocks that serve rows (thread_work.cuh). grid.y: first those of q, then of k, then of v.
  int tokens_per_block;  // blockDim.x
  int threads_per_row;   // blockDim.y: one for each slice of a row (slice_dims.cuh); a power of two from 4
                         // on if normed or keeps_last_of_slot: blocks are whole warps then
  int rows_at_once;      // blockDim.z: heads of a token that a block serves at the same time
  int q_blocks, rows_per_q_block;
  int kv_blocks, rows_per_kv_block;  // as many for k as for v

  int num_lookers;            // threads that look at later rows together: of a warp, or of a block
  uint32_t distances_in_row;  // bits: distances between a warp's lanes of one normed row (row_sum.cuh)
  Divisor<uint32_t> q_heads_per_group;  // of one KV head

  // The tiles.
  bool stores_runs;     // neighbouring slots of one head dimension may be stored as 16 bytes
  int tile_blocks;      // grid.y of the tiles
  int tile_parts_log2;  // of the parts into which heads are divided, each in tiles of its own
  int tile_dims;        // head dimensions of a part; the last ones may have fewer, or none
  int tile_pitch;       // elements of the cache between rows of a tile in shared memory
  int parts_per_tile_block;
  Divisor<uint32_t> num_tiles;    // of one part
  Divisor<uint32_t> row_threads;  // threads_per_row

  KVROPE_HOST_DEVICE int num_threads() const { return tokens_per_block * threads_per_row * rows_at_once; }

  int grid_x(int64_t num_kv_rows) const {
    return static_cast<int>((num_kv_rows + tokens_per_block - 1) / tokens_per_block);
  }
  int grid_y(bool has_cache) const {
    return q_blocks + kv_blocks + (values_are_tiled ? tile_blocks : has_cache ? kv_blocks : 0);
  }
};

// The widest vector that fits every alignment, stride and split of the call: 16 bytes of dtype, halved until
// the rotated range, its offset, the head sizes, all base addresses and strides and the splits of the caches
// are multiples of it. Value caches whose head dimension is not contiguous are stored element by element or
// as tiles and set no limit. 1 for a call that is not compact (index_math.h).
int widest_vector(const RopeCacheParams& params);

LaunchPlan plan_launch(const RopeCacheParams& params);

}  // namespace kvrope
