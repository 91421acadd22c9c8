// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (kFewRows, launch_plan.cpp). Blocks of different rows store at the same time, so that a row has to know of
// later ones before it stores. Half of the threads of each block of k and v serve its rows; the other half,
// the watchers, look at the slots of later rows meanwhile. They have warps of their own. The two meet at a
// barrier. NOTE: threads that have returned count as come: where a slot is not valid the watchers go on
// alone.
#pragma once

#include "dependent_launch.cuh"
#include "launch_plan.h"
#include "row_indices.cuh"

namespace kvrope {

// Tells the threads that serve the row of this block whether a later row asks for its slot.
template <typename Params>
__device__ __forceinline__ void watch_slot(const Params& p, const LaunchPlan& plan) {
  using Index = IndexOf<Params>;
  const Index token = blockIdx.x, num_watchers = static_cast<Index>(plan.num_watchers());
  const Index watcher =
      (threadIdx.z - static_cast<unsigned>(plan.kv_rows_at_once)) * blockDim.y + threadIdx.y;
  wait_for_earlier_kernels();
  const PendingIndex<Index> slot =
      behind_window(p, PendingIndex<Index>(p.slot_mapping, token, has_slot(p, token)));
  bool is_asked_for = false;
#pragma unroll 1
  for (Index row = token + 1 + watcher; row < p.slot_mapping.size; row += num_watchers) {
    const PendingIndex<Index> later = behind_window(p, PendingIndex<Index>(p.slot_mapping, row, true));
    is_asked_for |= later.is_below(p.num_slots) & (later.value() == slot.value());
  }
  __syncthreads_or(is_asked_for);
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

// Whether a later row gets the slot of this one, which is valid. For the threads that serve rows.
template <typename Params, typename Index>
__device__ __forceinline__ bool is_superseded(const Params& p, const LaunchPlan& plan, Index token,
                                              const CheckedIndex<Index>& slot) {
  if (!plan.keeps_last_of_slot) return false;
  return __syncthreads_or(false) && goes_to_later_row<Index>(p, token, slot.value);
}

}  // namespace kvrope
