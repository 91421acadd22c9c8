// The shape of a launch, decided on the host from the parameters alone.
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

struct LaunchPlan {
  int vector_width;       // elements a thread moves at once: a power of two, at most 16 bytes of dtype
  int threads_per_row;    // power of two, at most a warp
  int rows_per_block;     // rows = heads of q, k and v of one token
  int blocks_per_token;   // grid.y
  int64_t num_rows;       // grid.x: rows of k, the longest
  bool use_pdl;
};

// The widest vector that fits every alignment, stride and split of the call: 16 bytes of dtype, halved until the
// rotated range, its offset, the head sizes, all base addresses and strides and the splits of the caches are
// multiples of it. Value caches whose head dimension is not contiguous are stored element by element and set no limit.
int widest_vector(const RopeCacheParams& params);

LaunchPlan plan_launch(const RopeCacheParams& params);

}  // namespace kvrope
