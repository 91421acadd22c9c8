// Rows that ask for one slot: the last of them gets it whole, as on the CPU, in calls of few rows
// (kFewRows, launch_plan.cpp). Blocks of different rows store at the same time, so that a row has to know of
// later ones before it stores. The threads of its block look at the slots of later rows, which are on their
// way at the same time as their own, and vote: those of each warp for themselves where a warp can look at
// all, since a barrier takes longer, else those of the block.
#pragma once

#include "launch_plan.h"
#include "row_indices.cuh"
#include "thread_work.cuh"

namespace kvrope {

// Slots of the rows at some distances behind a token: `first`, and `step` more each time.
template <typename Params, int kCount>
struct LaterSlots {
  using Index = IndexOf<Params>;
  int first, step;
  PendingIndex<Index> slots[kCount];

  // One of num_threads that together look at all later rows.
  __device__ __forceinline__ LaterSlots(const Params& p, const LaunchPlan& plan, Index token, int thread,
                                        int num_threads)
      : first(thread + 1), step(num_threads) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const Index row = token + static_cast<Index>(distance(j));
      const bool is_inside = plan.keeps_last_of_slot && row < p.slot_mapping.size;
      slots[j] = behind_window(p, PendingIndex<Index>(p.slot_mapping, row, is_inside));
    }
  }

  __device__ __forceinline__ int distance(int j) const {
    return first + j * step;
  }

  __device__ __forceinline__ bool contain(const Params& p, const PendingIndex<Index>& slot) const {
    bool is_one = false;
#pragma unroll
    for (int j = 0; j < kCount; ++j)
      is_one |= slots[j].is_below(p.num_slots) & (slots[j].value() == slot.value());
    return is_one;
  }
};

// This thread's number among those of its block that look at later rows together. Blocks that serve rows have
// one token in calls of few rows.
__device__ __forceinline__ int rank_among_lookers(const LaunchPlan& plan) {
  return thread_rank() & (plan.num_lookers - 1);
}

// Where the slot stands of the first later row that this thread looks at.
template <typename Params, typename Index>
__device__ __forceinline__ const char* place_of_later_slot(const Params& p, const LaunchPlan& plan,
                                                           Index token) {
  return place_of_index(p.slot_mapping, token + static_cast<Index>(rank_among_lookers(plan) + 1));
}

template <int kVectorBytes, typename Params, typename Index>
__device__ __forceinline__ auto later_slots_of_thread(const Params& p, const LaunchPlan& plan, Index token) {
  return LaterSlots<Params, later_rows_per_thread(kVectorBytes)>(p, plan, token, rank_among_lookers(plan),
                                                                 plan.num_lookers);
}

// For a slot that a later row asks for: whether that row will be cached, or leaves it for want of a position.
template <int kMaxAxes, typename Index>
__device__ __noinline__ bool goes_to_later_row(const BasicRopeCacheParams<Index>& p, Index token,
                                               Index slot) {
  for (Index later = token + 1; later < p.slot_mapping.size; ++later) {
    if (cache_slot(p, later) != static_cast<int64_t>(slot)) continue;
    if (later >= p.num_tokens || is_in_table(p, deciding_position<kMaxAxes>(p, later))) return true;
  }
  return false;
}

// Whether a later row gets the slot of this one. All threads of a block come here, with one token.
template <typename Params, Presence kAxes, typename Index, int kCount>
__device__ __forceinline__ bool is_superseded(const Params& p, const LaunchPlan& plan, Index token,
                                              const PendingKvRow<Params, kAxes>& row,
                                              const LaterSlots<Params, kCount>& later) {
  const bool sees_one = later.contain(p, row.pending_slot());
  if (!plan.keeps_last_of_slot) return false;
  const bool is_asked_for =
      plan.num_lookers == kWarp ? __any_sync(kFullWarp, sees_one) : __syncthreads_or(sees_one);
  const CheckedIndex<Index> slot = row.slot(p);
  return is_asked_for && slot.is_valid &&
         goes_to_later_row<kNumAxesOf<kMaybeExtended<Params>>, Index>(p, token, slot.value);
}

}  // namespace kvrope
