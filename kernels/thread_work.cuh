// Which thread serves which slices of which rows.
//
//   grid.y    blocks of q | blocks of k | blocks of v, or the tiles of value_tile.cuh
//   grid.x    tokens, tokens_per_block at a time
//   thread    x = token of the block, y = slice of a row, z = row
//
//                    z = 0              1              2      ...
//   block of q     [ head 0          ][ head 1       ][ head 2       ]    128 bf16 a head, 8 bytes a vector
//                    y = 0 1 2 ... 15   0 1 2 ... 15   0 1 2 ... 15
//
// A thread serves one slice of rows z, z + rows_at_once, ... of its block: what depends on the token alone
// (position, cosines and sines, slot) is loaded and worked out once. Calls whose threads fit the device at
// once are a matter of latency and give each thread one row.
//
// All blocks of the first rows come before all blocks of the next, so that at any time the device reads and
// writes a few long streams. A block may have two tokens, or four, whose lanes lie next to each other
// (tokens_per_block, launch_plan.cpp).
#pragma once

namespace kvrope {

template <typename Index>
struct RowWork {
  Index token;
  int slice;
  int head, end, step;  // heads head, head + step, ... below end
};

__device__ __forceinline__ int thread_rank() {
  return static_cast<int>((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
}

// `block` counts from the first that serves these rows.
template <typename Index>
__device__ __forceinline__ RowWork<Index> rows_of_thread(int block, int rows_per_block, int num_heads) {
  const int first = block * rows_per_block, end = first + rows_per_block;
  return {static_cast<Index>(blockIdx.x) * static_cast<Index>(blockDim.x) + threadIdx.x,
          static_cast<int>(threadIdx.y), first + static_cast<int>(threadIdx.z),
          end < num_heads ? end : num_heads, static_cast<int>(blockDim.z)};
}

}  // namespace kvrope
