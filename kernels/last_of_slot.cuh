// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (kMaxRowsToKeepLast, launch_plan.cpp). Blocks of different rows store at the same time, so that a row has
// to know of later ones before it stores. The lanes of a warp, which have one token, look at the later rows
// together while the angles are on their way.
#pragma once

#include "launch_plan.h"
#include "row_indices.cuh"

namespace kvrope {

// Looks at every count-th later row from the first on.
template <typename Params, typename Index>
__device__ __forceinline__ bool is_asked_for_later(const Params& p, Index token,
                                                   const CheckedIndex<Index>& slot, Index first,
                                                   Index count) {
  constexpr int kAtOnce = 4;  // independent loads
  const Index size = p.slot_mapping.size;
  bool is_asked_for = false;
#pragma unroll 1
  for (Index row = token + 1 + first; row < size && slot.is_valid; row += kAtOnce * count) {
    PendingIndex<Index> later[kAtOnce];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) later[j] = {p.slot_mapping, row + j * count, row + j * count < size};
    if (has_window(p)) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        later[j] = {p.swa_slot_mapping, later[j].value(), later[j].is_below(p.swa_slot_mapping.size)};
      }
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      is_asked_for |= later[j].is_below(p.num_slots) && later[j].value() == slot.value;
    }
  }
  return is_asked_for;
}

// For a slot that a later row asks for: whether that row will be cached, or leaves it for want of a position.
template <typename Index>
__device__ __noinline__ bool goes_to_later_row(const BasicRopeCacheParams<Index>& p, Index token,
                                               Index slot) {
  for (Index later = token + 1; later < p.slot_mapping.size; ++later) {
    if (cache_slot(p, later) != static_cast<int64_t>(slot)) continue;
    if (later >= p.num_tokens || is_in_table(p, effective_position(p, later))) return true;
  }
  return false;
}

// Whether a later row gets the slot of this one. All active lanes of a warp call this with one token.
template <typename Params, typename Index>
__device__ __forceinline__ bool is_superseded(const Params& p, const LaunchPlan& plan, Index token,
                                              const CheckedIndex<Index>& slot) {
  if (!plan.keeps_last_of_slot || !slot.is_valid) return false;
  const unsigned lane = ((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) % 32;
  const unsigned lanes = __activemask(), lanes_below = lanes & ((1u << lane) - 1);
  const Index first = static_cast<Index>(__popc(lanes_below)), count = static_cast<Index>(__popc(lanes));
  const bool is_asked_for = __any_sync(lanes, is_asked_for_later(p, token, slot, first, count));
  return is_asked_for && goes_to_later_row<Index>(p, token, slot.value);
}

}  // namespace kvrope
