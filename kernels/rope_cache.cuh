// The kernel. Where the bytes go:
//
//   token t has QH + 2 KH rows: its query heads, its key heads, its value heads
//
//   q row -> (norm ->) rotate -> q_out[t, h, :]            (and zeros_out[t, h, :] = 0)
//   k row -> (norm ->) rotate -> k_out[t, h, :] and key_cache at the token's slot
//   v row ---------------------> value_cache at the token's slot
//
//   layout            one row of the cache                              stored as
//   flash             D neighbouring elements                           vectors
//   x-split key       D/x groups of x elements, block_size * x apart    vectors of at most x
//   x-split value     Dv elements, block_size apart                     tiles (value_tile.cuh), or elements
//                                                                       where rows are too few
//   shuffled value    Dv elements, x apart                              the same
//
// A thread serves one slice of some rows: two vectors lo, hi of kVec elements (slice_dims.cuh), or as many
// single elements where values lie apart and are no tiles (value_slice.cuh). Which thread serves which is
// thread_work.cuh's business. One launch serves every dtype pair, layout, stride and size; compiled in are
// the element types, the vector width, the style, and what form the call has (call_form.cuh). What few calls
// ask for is out of line.
//
// The position of a token is read, never derived from an index; arithmetic is fp32 and rounds once, at the
// store; V is never rotated; a thread reads both elements of a pair before it writes either, so q_out may be
// q and k_out k.
#pragma once

#include "cache_row.cuh"
#include "call_form.cuh"
#include "dependent_launch.cuh"
#include "head_norm.cuh"
#include "head_slice.cuh"
#include "last_of_slot.cuh"
#include "query_output.cuh"
#include "rotate_slice.cuh"
#include "row_indices.cuh"
#include "slots.cuh"
#include "thread_work.cuh"
#include "value_slice.cuh"
#include "value_tile.cuh"

namespace kvrope {

__device__ __forceinline__ void record_fault(FaultRecord* record, FaultKind kind, int64_t row,
                                             int64_t value) {
  if (record == nullptr || atomicCAS(&record->is_claimed, 0, 1) != 0) return;
  record->row = row;
  record->value = value;
  __threadfence();  // the host reads while kernels run: where it sees a kind it finds the rest
  record->kind = kind;
}

// For a row that may be a fault: one thread a token calls this, of its keys if the call has some.
template <int kMaxAxes, typename Index>
__device__ __noinline__ void record_fault_of_row(const BasicRopeCacheParams<Index>& p, Index token,
                                                 bool has_position) {
  const Slot slot = resolve_slot(p, token);
  if (slot.state == SlotState::padding) return;
  if (!has_position) {
    record_fault(p.fault_record, FaultKind::position_out_of_range, token,
                 deciding_position<kMaxAxes>(p, token));
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

// Work and dims by value: what is passed by reference lies in memory all along. The rows are among the
// launch's parameters, which do anyway.
template <typename T, int kVec, typename Index>
__device__ __noinline__ void fill_rows(const BasicHeadRows<Index>& rows, RowWork<Index> work, SliceDims dims,
                                       float value) {
  for (int head = work.head; head < work.end; head += work.step) {
    store_slice(head_of<T>(rows, work.token, head), rows.dim_stride, dims, filled<T, kVec>(value));
  }
}

template <int kVec, typename Params>
__device__ __forceinline__ SliceDims dims_of_slice(const Params& p, bool is_neox, bool is_rotated,
                                                   int slice) {
  if constexpr (kIsRotatedWhole<Params>) return slice_of_whole_head<kVec>(p.head_size, true, slice);
  if constexpr (kHasPlainOptions<Params>)
    return slice_of_partial_head<kVec>(p.head_size, p.rotary_dim, slice);
  const HeadShape shape = {p.head_size, is_rotated ? p.rotary_dim : 0, is_rotated ? p.rotary_dim_offset : 0};
  return slice_dims<kVec>(shape, is_neox, slice);
}

// Rows at fault, or padding whose position is in no table. Out of line: a launch of a microsecond waits even
// for instructions that it skips.
template <typename T, int kVec, bool kIsNeox, typename Params, typename Index>
__device__ __noinline__ void serve_faulty_queries(const Params& p, RowWork<Index> work) {
  if (!has_keys(p) && work.slice == 0 && work.head == 0)
    record_fault_of_row<kNumAxesOf<kMaybeExtended<Params>>, Index>(p, work.token, false);
  const SliceDims dims = dims_of_slice<kVec>(p, kIsNeox, true, work.slice);
  if (!dims.has_lo) return;
  const float value = out_of_table_value<Index>(p, work.token);
  if (has_fp8_queries<kMaybeExtended<Params>>(p)) {  // zero and NaN have the same bits in both formats
    fill_rows<fp8_e4m3, kVec>(p.q_out, work, dims, value);
  } else {
    fill_rows<T, kVec>(p.q_out, work, dims, value);
  }
}

template <typename T, int kVec, bool kIsNeox, typename Params, typename Index>
__device__ __noinline__ void serve_faulty_keys(const Params& p, RowWork<Index> work, bool has_position) {
  if (work.slice == 0 && work.head == 0)
    record_fault_of_row<kNumAxesOf<kMaybeExtended<Params>>, Index>(p, work.token, has_position);
  if (has_position || !has_k_out(p)) return;
  const SliceDims dims = dims_of_slice<kVec>(p, kIsNeox, true, work.slice);
  if (dims.has_lo) fill_rows<T, kVec>(p.k_out, work, dims, out_of_table_value<Index>(p, work.token));
}

// Whether a thread has a slice of its row. In extended calls that norm heads all have (launch_plan.cpp).
template <Presence kNorm>
__device__ __forceinline__ bool has_slice_of_row(const SliceDims& dims) {
  return kNorm == Presence::always || dims.has_lo;
}

// Without a norm threads without a slice have returned.
template <Presence kNorm>
__device__ __forceinline__ bool stores(bool has_slice) {
  return kNorm == Presence::never || has_slice;
}

// Work before the wait pays in compact calls (compact_params.h). Numbers of 64 bits take too many registers.
template <typename Params>
constexpr bool kIsCompact = sizeof(IndexOf<Params>) == 4;

// Where the scheduler's numbers of a row of k and v are, and the first later slot to look at.
template <typename Params, typename Index>
__device__ __forceinline__ void add_kv_row(WorkBeforeWait& early, const Params& p, const LaunchPlan& plan,
                                           Index token) {
  early.add(place_of_index(p.pos, token));
  early.add(place_of_index(p.slot_mapping, token));
  early.add(place_of_later_slot(p, plan, token));
}

// Each of these works out addresses before it waits for earlier kernels. Behind that the elements of the
// first row and the scheduler's numbers are loaded, before anything waits for one of them. Threads of k and v
// that have no slice return behind the loads: the compiler does not move what waits above that. The next row
// is loaded as soon as its registers are free. Threads without work go as far as the vote on the slot where
// there is one (last_of_slot.cuh). Threads that have no slice of a row take part in its norm: they go along
// with the first slice and store nothing.

template <typename T, int kVec, bool kIsNeox, Presence kNorm, Presence kAxes, Presence kFp8, typename Params,
          typename Index>
__device__ __forceinline__ void query_rows(const Params& p, const LaunchPlan& plan,
                                           const RowWork<Index>& work) {
  SliceDims dims = dims_of_slice<kVec>(p, kIsNeox, true, work.slice);
  const bool has_slice = has_slice_of_row<kNorm>(dims);
  const bool is_normed = is_present<kNorm>(p.q_weight.data != nullptr);
  if (work.token >= p.num_tokens || work.head >= work.end || !(has_slice || is_normed)) return;
  if (kNorm != Presence::never && !has_slice) dims = dims_of_slice<kVec>(p, kIsNeox, true, 0);
  const T* from = head_of<const T>(p.q, work.token, work.head);
  WorkBeforeWait early(kIsCompact<Params>, from);
  early.add(place_of_index(p.pos, work.token));
  early.add(head_of<T>(p.q_out, work.token, work.head));  // fp8 queries go elsewhere
  SliceRotation<kIsNeox, kVec, Params, kAxes>::add_to(early, p, dims);
  early.wait_for_earlier_kernels();
  HeadSlice<T, kVec> x = load_slice<T, kVec>(from, p.q.dim_stride, dims);
  const PendingPosition<Params, kAxes> pending(p, work.token, true);
  QueryOutput<T, kVec, kFp8, Params> output(p, plan, work.token, work.head);
  const HeadNorm<T, kVec, kNorm, Params> norm(p, plan, p.q_weight, dims, is_normed);
  SliceRotation<kIsNeox, kVec, Params, kAxes> rotation(p, dims);

  const CheckedPosition<Index, kNumAxesOf<kAxes>> position = pending.checked(p);
  if (has_zeros_out(p) && stores<kNorm>(has_slice)) fill_rows<T, kVec>(p.zeros_out, work, dims, 0.0f);
  if (!position.is_valid) return serve_faulty_queries<T, kVec, kIsNeox>(p, work);
  rotation.load(position);
  output.invert_scale();
#pragma unroll 1
  for (int head = work.head;;) {
    if (dims.is_rotated || norm.is_given() || output.is_fp8()) {
      SliceValues<kVec> values =
          norm.is_given() ? norm.norm(from, p.q.dim_stride, x, has_slice, work.slice) : widen(x);
      if (dims.is_rotated) rotation.rotate(values);
      if (output.is_fp8() && stores<kNorm>(has_slice)) output.store_fp8(dims, values);
      x = narrow<T>(values);
    }
    if (!output.is_fp8() && stores<kNorm>(has_slice)) output.store(dims, x);
    if ((head += work.step) >= work.end) return;
    output.go_to(head, work.step);
    from += product(static_cast<Index>(work.step), p.q.head_stride);
    x = load_slice<T, kVec>(from, p.q.dim_stride, dims);
  }
}

template <typename T, typename CacheT, int kVec, bool kIsNeox, Presence kNorm, Presence kAxes,
          typename Params, typename Index>
__device__ __forceinline__ void key_rows(const Params& p, const LaunchPlan& plan,
                                         const RowWork<Index>& work) {
  SliceDims dims = dims_of_slice<kVec>(p, kIsNeox, is_token(p, work.token), work.slice);
  const bool has_slice = has_slice_of_row<kNorm>(dims);
  const bool is_normed = is_present<kNorm>(p.k_weight.data != nullptr) && is_token(p, work.token);
  const bool has_work = work.head < work.end && (has_slice || is_normed);
  if (work.token >= p.num_kv_rows || (work.head >= work.end && !plan.keeps_last_of_slot)) return;
  if (kNorm != Presence::never && !has_slice) {
    dims = dims_of_slice<kVec>(p, kIsNeox, is_token(p, work.token), 0);
  }
  dims.is_rotated = dims.is_rotated && has_work;
  const T* from = head_of<const T>(p.k, work.token, work.head);
  WorkBeforeWait early(kIsCompact<Params>, from);
  add_kv_row(early, p, plan, work.token);
  early.add(head_of<T>(p.k_out, work.token, work.head));
  SliceRotation<kIsNeox, kVec, Params, kAxes>::add_to(early, p, dims);
  add_cache(early, p, p.key_cache);
  early.wait_for_earlier_kernels();
  HeadSlice<T, kVec> x;
  if (has_work) x = load_slice<T, kVec>(from, p.k.dim_stride, dims);
  const PendingKvRow<Params, kAxes> row(p, work.token);
  const auto later = later_slots_of_thread<kVec * sizeof(T)>(p, plan, work.token);
  const PendingScale<T, CacheT, Params> pending_scale(p.k_scale, work.head, has_work);
  const HeadNorm<T, kVec, kNorm, Params> norm(p, plan, p.k_weight, dims, is_normed);
  SliceRotation<kIsNeox, kVec, Params, kAxes> rotation(p, dims);

  if (!(has_work || plan.keeps_last_of_slot)) return;
  const CheckedPosition<Index, kNumAxesOf<kAxes>> position = row.position(p);
  rotation.load(position);
  const CheckedIndex<Index> slot = row.slot(p);
  CacheScale scale = pending_scale.scale(p);
  const bool is_cached = !is_superseded(p, plan, work.token, row, later) && slot.is_valid;
  if (!has_work) return;
  if (!position.is_valid || !(slot.is_valid || row.is_padding(p))) {
    serve_faulty_keys<T, kVec, kIsNeox>(p, work, position.is_valid);
    if (!position.is_valid) return;
  }
  CacheT* cache = cache_row<CacheT>(p.key_cache, p.block_size, slot.value, work.head);
  T* to = head_of<T>(p.k_out, work.token, work.head);
#pragma unroll 1
  for (int head = work.head;;) {
    SliceValues<kVec> values =
        norm.is_given() ? norm.norm(from, p.k.dim_stride, x, has_slice, work.slice) : widen(x);
    if (dims.is_rotated) rotation.rotate(values);
    if (dims.is_rotated || norm.is_given()) x = narrow<T>(values);
    if (has_k_out(p) && stores<kNorm>(has_slice)) store_slice(to, p.k_out.dim_stride, dims, x);
    if (is_cached && stores<kNorm>(has_slice)) {
      if (matches_unfused(p)) values = widen(x);
      store_slice(cache, p.key_cache.layout, dims, to_cache_type<CacheT>(scale, x, values));
    }
    if ((head += work.step) >= work.end) return;
    scale = scale_of_head<T, CacheT>(p, p.k_scale, head);
    from += product(static_cast<Index>(work.step), p.k.head_stride);
    to += product(static_cast<Index>(work.step), p.k_out.head_stride);
    cache += product(static_cast<Index>(work.step), p.key_cache.layout.head_stride);
    x = load_slice<T, kVec>(from, p.k.dim_stride, dims);
  }
}

// Slice is ValueVectors or ValueElements.
template <typename T, typename CacheT, int kVec, typename Slice, Presence kAxes, typename Params,
          typename Index>
__device__ __forceinline__ void value_rows(const Params& p, const LaunchPlan& plan,
                                           const RowWork<Index>& work) {
  Slice x(p, plan, work.slice);
  const bool has_work = work.head < work.end && !x.is_empty();
  if (work.token >= p.num_kv_rows || (work.head >= work.end && !plan.keeps_last_of_slot)) return;
  const T* from = head_of<const T>(p.v, work.token, work.head);
  WorkBeforeWait early(kIsCompact<Params>, from);
  add_kv_row(early, p, plan, work.token);
  early.add(p.cos_sin.num_rows);  // positions are held against it
  add_cache(early, p, p.value_cache);
  early.wait_for_earlier_kernels();
  if (has_work) x.load(from);
  const PendingKvRow<Params, kAxes> row(p, work.token);
  const auto later = later_slots_of_thread<kVec * sizeof(T)>(p, plan, work.token);
  const PendingScale<T, CacheT, Params> pending_scale(p.v_scale, work.head, has_work);

  if (!(has_work || plan.keeps_last_of_slot)) return;
  const CheckedIndex<Index> slot = row.slot(p);
  CacheScale scale = pending_scale.scale(p);
  if (is_superseded(p, plan, work.token, row, later) || !has_work) return;
  if (!slot.is_valid || !row.position(p).is_valid) return;
  CacheT* cache = cache_row<CacheT>(p.value_cache, p.block_size, slot.value, work.head);
#pragma unroll 1
  for (int head = work.head;;) {
    x.store(scale, cache);
    if ((head += work.step) >= work.end) return;
    scale = scale_of_head<T, CacheT>(p, p.v_scale, head);
    from += product(static_cast<Index>(work.step), p.v.head_stride);
    cache += product(static_cast<Index>(work.step), p.value_cache.layout.head_stride);
    x.load(from);
  }
}

// Params is that of the call's form (call_form.cuh): CompactParams for general calls with vectors,
// RopeCacheParams for single elements.
template <typename Params, typename T, typename CacheT, int kVec, bool kIsNeox>
__global__ void __launch_bounds__(kMaxThreadsPerBlock, 2)
    rope_cache_kernel(const __grid_constant__ Params p, const __grid_constant__ LaunchPlan plan) {
  using Index = IndexOf<Params>;
  constexpr bool kHasShortVectors = kVec * sizeof(T) <= kShortVectorBytes;
  let_next_kernel_start();
  int block = static_cast<int>(blockIdx.y);
  if (block < plan.q_blocks) {
    const RowWork<Index> rows = rows_of_thread<Index>(block, plan.rows_per_q_block, p.num_q_heads);
    return with_extensions<Params, kHasShortVectors>(
        [&](auto norm, auto axes, auto fp8) {
          query_rows<T, kVec, kIsNeox, norm(), axes(), fp8()>(p, plan, rows);
        },
        p.q_weight.data != nullptr, p.pos_axis_stride != 0, is_fp8(p.q_out_dtype));
  }
  block -= plan.q_blocks;
  const auto rows_of_kv = [&](int nth_block) {
    return rows_of_thread<Index>(nth_block, plan.rows_per_kv_block, p.num_kv_heads);
  };
  if (block < plan.kv_blocks) {
    return with_extensions<Params, kHasShortVectors>(
        [&](auto norm, auto axes) {
          key_rows<T, CacheT, kVec, kIsNeox, norm(), axes()>(p, plan, rows_of_kv(block));
        },
        p.k_weight.data != nullptr, p.pos_axis_stride != 0);
  }
  block -= plan.kv_blocks;
  if (plan.values_are_tiled) return value_tile<T, CacheT, kVec>(p, plan, block);
  with_extensions<Params, kHasShortVectors>(
      [&](auto axes) {
        using Vectors = ValueVectors<T, CacheT, kVec, Params>;
        using Elements = ValueElements<T, CacheT, kVec, Params>;
        plan.values_are_apart ? value_rows<T, CacheT, kVec, Elements, axes()>(p, plan, rows_of_kv(block))
                              : value_rows<T, CacheT, kVec, Vectors, axes()>(p, plan, rows_of_kv(block));
      },
      p.pos_axis_stride != 0);
}

}  // namespace kvrope
