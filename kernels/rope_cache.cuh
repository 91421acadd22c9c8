// The kernel. Where the bytes go:
//
//   token t has QH + 2 KH rows: its query heads, its key heads, its value heads
//
//   q row -> rotate -> q_out[t, h, :]                      (and zeros_out[t, h, :] = 0)
//   k row -> rotate -> k_out[t, h, :] and key_cache at the token's slot
//   v row -----------> value_cache at the token's slot
//
//   layout            one row of the cache                              stored as
//   flash             D neighbouring elements                           vectors
//   x-split key       D/x groups of x elements, block_size * x apart    vectors of at most x
//   x-split value     D elements, block_size apart                      single elements
//   shuffled value    D elements, x apart                               single elements
//
// A thread serves one slice of a row: two vectors lo, hi of kVec elements (slice_dims.cuh). Which thread
// serves which slice is work_of_thread's business (thread_work.cuh). One launch serves every dtype pair,
// layout, stride and size; compiled in are only the element types, the vector width and the style.
//
// The position of a token is read, never derived from an index; arithmetic is fp32 and rounds once, at the
// store; V is never rotated; a thread reads both elements of a pair before it writes either, so q_out may be
// q and k_out k.
#pragma once

#include <type_traits>

#include "cache_row.cuh"
#include "head_slice.cuh"
#include "last_of_slot.cuh"
#include "rope_cache_params.h"
#include "rotate_slice.cuh"
#include "slots.cuh"
#include "thread_work.cuh"

namespace kvrope {

// Programmatic dependent launch: nothing that an earlier kernel wrote may be read before this returns.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

template <typename T, typename Index>
__device__ __forceinline__ T* head_of(const BasicHeadRows<Index>& rows, Index token, int head) {
  return static_cast<T*>(rows.data) + product(token, rows.token_stride) +
         product(static_cast<Index>(head), rows.head_stride);
}

__device__ __forceinline__ void record_fault(FaultRecord* record, FaultKind kind, int64_t row,
                                             int64_t value) {
  if (record == nullptr || atomicCAS(&record->is_claimed, 0, 1) != 0) return;
  record->kind = kind;
  record->row = row;
  record->value = value;
}

// For a row that is not cached: one thread a token calls this.
template <typename Index>
__device__ __noinline__ void record_fault_of_row(const BasicRopeCacheParams<Index>& p, Index token,
                                                 bool has_position) {
  const Slot slot = resolve_slot(p, token);
  if (slot.state == SlotState::padding) return;
  if (!has_position) {
    record_fault(p.fault_record, FaultKind::position_out_of_range, token, effective_position(p, token));
  } else if (slot.state == SlotState::slot_out_of_range) {
    record_fault(p.fault_record, FaultKind::slot_out_of_range, token, slot.value);
  } else if (slot.state == SlotState::window_out_of_range) {
    record_fault(p.fault_record, FaultKind::window_slot_out_of_range, token, slot.value);
  }
}

// What an output row becomes when its position is not in the table: NaN, or zero where nobody will read it.
template <typename Index>
__device__ __noinline__ float out_of_table_value(const BasicRopeCacheParams<Index>& p, Index token) {
  return resolve_slot(p, token).state == SlotState::padding ? 0.0f : float_of(0x7fffffffu);
}

// In each of these the loads of the row's own elements stand before whatever waits for its position or slot.

template <typename T, int kVec, bool kIsNeox, typename Index>
__device__ __forceinline__ void query_slice(const BasicRopeCacheParams<Index>& p, Index token, int head,
                                            int i) {
  const HeadShape shape = {p.head_size, p.rotary_dim, p.rotary_dim_offset};
  if (i >= num_slices<kVec>(shape)) return;
  const SliceDims dims = slice_dims<kVec>(shape, kIsNeox, i);
  HeadSlice<T, kVec> x = load_slice<T, kVec>(head_of<const T>(p.q, token, head), p.q.dim_stride, dims);

  const int64_t position = effective_position(p, token);
  if (!is_in_table(p, position)) {
    x = filled<T, kVec>(out_of_table_value(p, token));
  } else if (dims.is_rotated) {
    SliceValues<kVec> values = widen(x);
    rotate_slice<kIsNeox>(values, p, position, dims);
    x = narrow<T>(values);
  }
  store_slice(head_of<T>(p.q_out, token, head), p.q_out.dim_stride, dims, x);
  if (p.zeros_out.data != nullptr) {
    store_slice(head_of<T>(p.zeros_out, token, head), p.zeros_out.dim_stride, dims, filled<T, kVec>(0.0f));
  }
}

template <typename T, typename CacheT, int kVec, bool kIsNeox, typename Index>
__device__ __forceinline__ void key_slice(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                          Index token, int head, int i) {
  const bool is_rotated = token < p.num_tokens;  // otherwise the row is final already
  const HeadShape shape = {p.head_size, is_rotated ? p.rotary_dim : 0, is_rotated ? p.rotary_dim_offset : 0};
  if (i >= num_slices<kVec>(shape)) return;
  const SliceDims dims = slice_dims<kVec>(shape, kIsNeox, i);
  HeadSlice<T, kVec> x = load_slice<T, kVec>(head_of<const T>(p.k, token, head), p.k.dim_stride, dims);

  const int64_t position = is_rotated ? effective_position(p, token) : 0;
  const int64_t slot = p.has_cache ? cache_slot(p, token) : -1;
  const bool superseded = is_superseded<T, kVec>(p, plan, token, slot);
  const bool has_position = !is_rotated || is_in_table(p, position);
  SliceValues<kVec> values = widen(x);
  if (!has_position) {
    x = filled<T, kVec>(out_of_table_value(p, token));
  } else if (dims.is_rotated) {
    rotate_slice<kIsNeox>(values, p, position, dims);
    x = narrow<T>(values);
    if (p.match_unfused) values = widen(x);
  }
  if (p.k_out.data != nullptr) {
    store_slice(head_of<T>(p.k_out, token, head), p.k_out.dim_stride, dims, x);
  }
  if (has_position && slot >= 0) {
    if (superseded) return;
    CacheT* row = cache_row<CacheT>(p.key_cache, p.block_size, slot, head);
    store_contiguous(p.key_cache.layout, row, dims,
                     to_cache_type<CacheT>(p.k_scale, head, p.match_unfused, x, values));
  } else if (i == 0 && head == 0) {
    record_fault_of_row(p, token, has_position);
  }
}

template <typename T, typename CacheT, int kVec, bool kIsNeox, typename Index>
__device__ __forceinline__ void value_slice(const BasicRopeCacheParams<Index>& p, const LaunchPlan& plan,
                                            Index token, int head, int i) {
  const HeadShape shape = {p.v_head_size, 0, 0};
  if (i >= num_slices<kVec>(shape)) return;
  const SliceDims dims = slice_dims<kVec>(shape, kIsNeox, i);
  const HeadSlice<T, kVec> x = load_slice<T, kVec>(head_of<const T>(p.v, token, head), p.v.dim_stride, dims);

  const int64_t slot = cache_slot(p, token);
  const bool superseded = is_superseded<T, kVec>(p, plan, token, slot);
  const bool has_position = token >= p.num_tokens || is_in_table(p, effective_position(p, token));
  if (!has_position || slot < 0 || superseded) return;
  CacheT* row = cache_row<CacheT>(p.value_cache, p.block_size, slot, head);
  const HeadSlice<CacheT, kVec> stored = to_cache_type<CacheT>(p.v_scale, head, p.match_unfused, x, widen(x));
  if (plan.values_are_scattered) {
    store_scattered(p.value_cache.layout, row, dims, stored);
  } else {
    store_contiguous(p.value_cache.layout, row, dims, stored);
  }
}

// Vectors come with compact parameters, single elements take any call.
template <int kVec>
using ParamsFor = std::conditional_t<kVec == 1, RopeCacheParams, CompactParams>;

template <typename T, typename CacheT, int kVec, bool kIsNeox>
__global__ void rope_cache_kernel(const __grid_constant__ ParamsFor<kVec> p,
                                  const __grid_constant__ LaunchPlan plan) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const auto work = work_of_thread(p, plan);
  const int key_rows = p.num_q_heads, value_rows = key_rows + p.num_kv_heads;
  if (work.row < key_rows) {
    if (work.token < p.num_tokens) query_slice<T, kVec, kIsNeox>(p, work.token, work.row, work.slice);
  } else if (work.row < value_rows) {
    key_slice<T, CacheT, kVec, kIsNeox>(p, plan, work.token, work.row - key_rows, work.slice);
  } else if (work.row < plan.num_rows) {
    value_slice<T, CacheT, kVec, kIsNeox>(p, plan, work.token, work.row - value_rows, work.slice);
  }
}

}  // namespace kvrope
