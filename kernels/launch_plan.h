// The shape of a launch, decided on the host from the parameters alone.
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

constexpr int kBytesPerVectorOfFew = 8;  // at most, in calls of few rows

struct LaunchPlan {
  int vector_width;      // elements a thread moves at once: a power of two, at most 16 bytes of dtype
  int num_rows;          // heads of q, k and v of one token
  int threads_per_row;   // blockDim.x: one for each slice of a row (slice_dims.cuh)
  int rows_per_block;    // blockDim.y
  int blocks_by_row;     // leading part of grid.y, in which each block serves rows of one token
                         // (thread_work.cuh)
  int blocks_by_token;   // the rest of grid.y, in which lanes go along tokens; 0 where there is no need
  int tile_tokens_log2;  // tokens that a block of that part serves together: rows_per_block of them
  Divisor<uint32_t> num_tiles;
  bool values_are_scattered;  // head dimensions of the value cache are not neighbours
  bool keeps_last_of_slot;    // few rows: of those with one slot the last is kept (last_of_slot.cuh)
  bool use_pdl;
};

// The widest vector that fits every alignment, stride and split of the call: 16 bytes of dtype, halved until
// the rotated range, its offset, the head sizes, all base addresses and strides and the splits of the caches
// are multiples of it. Value caches whose head dimension is not contiguous are stored element by element and
// set no limit. 1 for a call that is not compact (index_math.h).
int widest_vector(const RopeCacheParams& params);

LaunchPlan plan_launch(const RopeCacheParams& params);

}  // namespace kvrope
