// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (launch_plan.h). Blocks of different rows store at the same time, so that a row has to know of later ones
// before it stores. The lanes of a warp look at the later rows together.
#pragma once

#include "launch_plan.h"
#include "slots.cuh"

namespace kvrope {

// Whether a later row gets the slot of this one. All active lanes of a warp call this with one token and its
// slot. Instances with wider vectors than calls of few rows have compile to nothing.
template <typename T, int kVec, typename Index>
__device__ __forceinline__ bool is_superseded(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                              Index token, int64_t slot) {
  if (sizeof(T) * kVec > kBytesPerVectorOfFew || !plan.keeps_last_of_slot) return false;
  constexpr int kAtOnce = 4;  // independent loads of a lane
  const unsigned lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32, lanes_below = (1u << lane) - 1;
  const unsigned lanes = __activemask();
  const Index step = __popc(lanes), size = p.slot_mapping.size;
  bool is_last = true;
  for (Index first = token + 1 + __popc(lanes & lanes_below); first < size; first += kAtOnce * step) {
    int64_t later_slots[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) later_slots[j] = cache_slot<Index>(p, first + j * step);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const Index later = first + j * step;
      if (later_slots[j] < 0 || later_slots[j] != slot) continue;
      // A later row that will not be cached for want of a position leaves the slot to this one.
      is_last = is_last && later < p.num_tokens && !is_in_table(p, effective_position(p, later));
    }
  }
  return !__all_sync(lanes, is_last);
}

}  // namespace kvrope
