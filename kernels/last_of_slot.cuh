// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (launch_plan.h). Blocks of different rows store at the same time, so that a row has to know of later ones
// before it stores. Threads that serve no row look for later rows while the others load and rotate theirs.
#pragma once

#include "dependent_launch.cuh"
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

// What the threads behind the rows of a block of k or v do, the watchers, which answer is_superseded of the
// others. The block holds one token. Returns whether this thread is one.
template <typename Params, typename Index>
__device__ __forceinline__ bool watches_for_later_rows(const Params& p, const LaunchPlan& plan, Index token) {
  const int watcher = static_cast<int>(threadIdx.z) - plan.first_watcher;
  if (!plan.keeps_last_of_slot || watcher < 0) return false;
  wait_for_earlier_kernels();
  const PendingIndex<Index> pending(p.slot_mapping, token, has_slot(p, token));
  const CheckedIndex<Index> slot = checked_slot(p, token, pending);
  const int first = watcher * plan.threads_per_row + static_cast<int>(threadIdx.y);
  const int count = (static_cast<int>(blockDim.z) - plan.first_watcher) * plan.threads_per_row;
  __syncthreads_or(is_asked_for_later(p, token, slot, static_cast<Index>(first), static_cast<Index>(count)));
  return true;
}

// Whether a later row gets the slot of this one. All threads of a block that serve a row call this.
template <typename Index>
__device__ __forceinline__ bool is_superseded(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                              Index token, const CheckedIndex<Index>& slot) {
  return plan.keeps_last_of_slot && __syncthreads_or(false) && goes_to_later_row(p, token, slot.value);
}

}  // namespace kvrope
