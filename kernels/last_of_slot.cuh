// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (launch_plan.h). Blocks of different rows store at the same time, so that a row has to know of later ones
// before it stores. The lanes of a warp, which serve one token there, look at the later rows together; the
// loads run beside those of the position.
#pragma once

#include "slots.cuh"

namespace kvrope {

// All active lanes of a warp call this with one token.
template <typename Index>
__device__ __forceinline__ bool is_superseded(const BasicRopeCacheParams<Index>& p, Index token) {
  const unsigned lanes = __activemask();
  const int64_t slot = cache_slot(p, token);
  bool found = false;
  unsigned lane;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane));
  for (Index later = token + 1 + lane; later < p.slot_mapping.size; later += __popc(lanes)) {
    if (slot < 0 || cache_slot(p, later) != slot) continue;
    found = found || later >= p.num_tokens || is_in_table(p, effective_position(p, later));
  }
  return __any_sync(lanes, found);
}

}  // namespace kvrope
