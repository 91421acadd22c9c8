// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (kFewRows, launch_plan.cpp). Blocks of different rows store at the same time, so that a row has to know of
// later ones before it stores. Half of the threads of a block that serves rows of k or v do that; the other
// half, the watchers, look at the slots of later rows meanwhile. They have warps of their own. All meet at
// one barrier. In blocks of tiles all threads look (value_tile.cuh).
#pragma once

#include "launch_plan.h"
#include "row_indices.cuh"

namespace kvrope {

// Whether this thread, if it is a watcher, finds a later row that asks for the slot of its block's row.
template <typename Params, typename Index>
__device__ __forceinline__ bool sees_later_row(const Params& p, const LaunchPlan& plan, Index token,
                                               const PendingIndex<Index>& slot) {
  const int row_of_watchers = static_cast<int>(threadIdx.z) - plan.kv_rows_at_once;
  if (row_of_watchers < 0) return false;
  const Index watcher = static_cast<Index>(row_of_watchers) * blockDim.y + threadIdx.y;
  const Index num_watchers = static_cast<Index>(plan.num_watchers());
  bool sees_one = false;
#pragma unroll 1
  for (Index row = token + 1 + watcher; row < p.slot_mapping.size; row += num_watchers) {
    const PendingIndex<Index> later = behind_window(p, PendingIndex<Index>(p.slot_mapping, row, true));
    sees_one |= later.is_below(p.num_slots) & (later.value() == slot.value());
  }
  return sees_one;
}

// For a slot that a later row asks for: whether that row will be cached, or leaves it for want of a position.
template <int kAxes, typename Index>
__device__ __noinline__ bool goes_to_later_row(const BasicRopeCacheParams<Index>& p, Index token,
                                               Index slot) {
  for (Index later = token + 1; later < p.slot_mapping.size; ++later) {
    if (cache_slot(p, later) != static_cast<int64_t>(slot)) continue;
    if (later >= p.num_tokens || is_in_table(p, deciding_position<kAxes>(p, later))) return true;
  }
  return false;
}

// Whether a later row gets the slot of this one. All threads of a block come here, with one token.
template <typename Params, typename Index>
__device__ __forceinline__ bool is_superseded(const Params& p, const LaunchPlan& plan, Index token,
                                              const CheckedIndex<Index>& slot, bool sees_one) {
  if (!plan.keeps_last_of_slot) return false;
  const bool is_asked_for = __syncthreads_or(sees_one);
  return is_asked_for && slot.is_valid &&
         goes_to_later_row<kNumAxesOf<kMaybeExtended<Params>>, Index>(p, token, slot.value);
}

}  // namespace kvrope
