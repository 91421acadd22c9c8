// The kernel. Where the bytes go:
//
//   token t has QH + 2 KH rows: its query heads, its key heads, its value heads
//
//                     blockIdx.y = 0           1            2
//   blockIdx.x = t  [ q0 ... q15 ]  [ q16 ... q31 ]  [ k0..k7 v0..v7 ]    (QH 32, KH 8, 16 rows a block)
//                      |
//                      threadIdx.y = row in the block
//                      threadIdx.x = slice of the row: two vectors lo, hi of kVec elements (head_slice.cuh)
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
// All blocks of the first rows come before all blocks of the next (blockIdx.x is the token), so that at any time the
// device reads and writes a few long streams. One launch serves every dtype pair, layout, style, stride and size;
// compiled in are only the two element types and the vector width.
//
// The position of a token is read, never derived from an index; arithmetic is fp32 and rounds once, at the store;
// V is never rotated; a thread reads both elements of a pair before it writes either, so q_out may be q and k_out k.
#pragma once

#include <type_traits>

#include "head_slice.cuh"
#include "rope_cache_params.h"
#include "rotate_slice.cuh"
#include "slots.cuh"

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

template <typename T>
__device__ __forceinline__ T* head_of(const HeadRows& rows, int64_t token, int head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

__device__ __forceinline__ void record_fault(const RopeCacheParams& p, FaultKind kind, int64_t row, int64_t value) {
  FaultRecord* record = p.fault_record;
  if (record == nullptr || atomicCAS(&record->is_claimed, 0, 1) != 0) return;
  record->kind = kind;
  record->row = row;
  record->value = value;
}

// What an output row becomes when its position is not in the table: NaN, or zero where nobody will read it.
__device__ __forceinline__ float out_of_table_value(SlotState slot) {
  return slot == SlotState::padding ? 0.0f : float_of(0x7fffffffu);
}

// One thread a token calls this.
__device__ __forceinline__ void record_fault_of_row(const RopeCacheParams& p, int64_t token, int64_t position,
                                                    bool has_position, const Slot& slot) {
  if (slot.state == SlotState::padding) return;
  if (!has_position) {
    record_fault(p, FaultKind::position_out_of_range, token, position);
  } else if (slot.state == SlotState::slot_out_of_range) {
    record_fault(p, FaultKind::slot_out_of_range, token, slot.value);
  } else if (slot.state == SlotState::window_out_of_range) {
    record_fault(p, FaultKind::window_slot_out_of_range, token, slot.value);
  }
}

// The loads of a row's elements stand before whatever waits for its position or slot.
template <typename T, int kVec>
__device__ __forceinline__ void query_row(const RopeCacheParams& p, int64_t token, int head) {
  const HeadShape shape = {p.head_size, p.rotary_dim, p.rotary_dim_offset};
  const RotaryStyle style = {p.is_neox, p.is_full_width_table};
  const T* q = head_of<const T>(p.q, token, head);

  for (int i = threadIdx.x; i < num_slices<kVec>(shape); i += blockDim.x) {
    const SliceDims dims = slice_dims<kVec>(shape, p.is_neox, i);
    HeadSlice<T, kVec> x = load_slice<T, kVec>(q, p.q.dim_stride, dims);
    const int64_t position = effective_position(p, token);
    if (!is_in_table(p, position)) {
      x = filled<T, kVec>(out_of_table_value(resolve_slot(p, token).state));
    } else if (dims.is_rotated) {
      SliceValues<kVec> values = widen(x);
      rotate_slice(values, TableRow(p.cos_sin, position), style, shape, dims);
      x = narrow<T>(values);
    }
    store_slice(head_of<T>(p.q_out, token, head), p.q_out.dim_stride, dims, x);
    if (p.zeros_out.data != nullptr) {
      store_slice(head_of<T>(p.zeros_out, token, head), p.zeros_out.dim_stride, dims, filled<T, kVec>(0.0f));
    }
  }
}

// One head of one token in a paged cache: converts, scales and stores slices of it.
template <typename T, typename CacheT>
struct CacheRow {
  const CacheLayout& layout;
  CacheT* data;
  Scale scale;
  bool is_scaled;

  __device__ __forceinline__ CacheRow(const RopeCacheParams& p, const PagedCache& cache, const ScaleArray& scales,
                                      int64_t slot, int head)
      : layout(cache.layout),
        data(static_cast<CacheT*>(cache.data)),
        scale(scales.data != nullptr ? scales.data[head * scales.head_stride] : 1.0f, p.match_unfused),
        is_scaled(scales.data != nullptr) {
    const SlotInBlock at = locate(slot, p.block_size);
    data += layout.row_offset(at.block, at.offset, head);
  }

  template <int kVec>
  __device__ __forceinline__ void store(int dim, const Vec<CacheT, kVec>& x) const {
    if (layout.has_contiguous_dims(kVec)) {
      store_vec(data + layout.dim_offset(dim), x);
    } else {
#pragma unroll
      for (int j = 0; j < kVec; ++j) data[layout.dim_offset(dim + j)] = x.at[j];
    }
  }

  // x holds the row in T, values the same before it was rounded to T. Unscaled rows of the cache's own type keep
  // their bits.
  template <int kVec>
  __device__ __forceinline__ void store(const SliceDims& dims, const HeadSlice<T, kVec>& x,
                                        const SliceValues<kVec>& values) const {
    HeadSlice<CacheT, kVec> stored;
    if constexpr (std::is_same_v<T, CacheT>) stored = x;
    if (is_scaled || !std::is_same_v<T, CacheT>) {
      SliceValues<kVec> scaled = values;
      if (is_scaled) {
#pragma unroll
        for (int j = 0; j < kVec; ++j) {
          scaled.lo[j] = scale.apply(values.lo[j]);
          scaled.hi[j] = scale.apply(values.hi[j]);
        }
      }
      stored = narrow<CacheT>(scaled);
    }
    store(dims.lo, stored.lo);
    if (dims.has_hi) store(dims.hi, stored.hi);
  }
};

template <typename T, typename CacheT, int kVec>
__device__ __forceinline__ void key_row(const RopeCacheParams& p, int64_t token, int head) {
  const bool is_rotated = token < p.num_tokens;  // otherwise the row is final already
  const HeadShape shape = {p.head_size, is_rotated ? p.rotary_dim : 0, is_rotated ? p.rotary_dim_offset : 0};
  const RotaryStyle style = {p.is_neox, p.is_full_width_table};
  const T* k = head_of<const T>(p.k, token, head);

  for (int i = threadIdx.x; i < num_slices<kVec>(shape); i += blockDim.x) {
    const SliceDims dims = slice_dims<kVec>(shape, p.is_neox, i);
    HeadSlice<T, kVec> x = load_slice<T, kVec>(k, p.k.dim_stride, dims);
    const int64_t position = is_rotated ? effective_position(p, token) : 0;
    const Slot slot = resolve_slot(p, token);
    const bool has_position = !is_rotated || is_in_table(p, position);
    if (i == 0 && head == 0) record_fault_of_row(p, token, position, has_position, slot);

    SliceValues<kVec> values = widen(x);
    if (!has_position) {
      x = filled<T, kVec>(out_of_table_value(slot.state));
    } else if (dims.is_rotated) {
      rotate_slice(values, TableRow(p.cos_sin, position), style, shape, dims);
      x = narrow<T>(values);
      if (p.match_unfused) values = widen(x);
    }
    if (p.k_out.data != nullptr) store_slice(head_of<T>(p.k_out, token, head), p.k_out.dim_stride, dims, x);
    if (has_position && slot.state == SlotState::valid) {
      CacheRow<T, CacheT>(p, p.key_cache, p.k_scale, slot.value, head).store(dims, x, values);
    }
  }
}

template <typename T, typename CacheT, int kVec>
__device__ __forceinline__ void value_row(const RopeCacheParams& p, int64_t token, int head) {
  const HeadShape shape = {p.v_head_size, 0, 0};
  const T* v = head_of<const T>(p.v, token, head);

  for (int i = threadIdx.x; i < num_slices<kVec>(shape); i += blockDim.x) {
    const SliceDims dims = slice_dims<kVec>(shape, p.is_neox, i);
    const HeadSlice<T, kVec> x = load_slice<T, kVec>(v, p.v.dim_stride, dims);
    const Slot slot = resolve_slot(p, token);
    const bool has_position = token >= p.num_tokens || is_in_table(p, effective_position(p, token));
    if (has_position && slot.state == SlotState::valid) {
      CacheRow<T, CacheT>(p, p.value_cache, p.v_scale, slot.value, head).store(dims, x, widen(x));
    }
  }
}

template <typename T, typename CacheT, int kVec>
__global__ void rope_cache_kernel(const __grid_constant__ RopeCacheParams p) {
  let_next_kernel_start();
  wait_for_earlier_kernels();
  const int64_t token = blockIdx.x;
  const int row = blockIdx.y * blockDim.y + threadIdx.y;
  const int key_rows = p.num_q_heads, value_rows = key_rows + p.num_kv_heads;
  if (row < key_rows) {
    if (token < p.num_tokens) query_row<T, kVec>(p, token, row);
  } else if (row < value_rows) {
    key_row<T, CacheT, kVec>(p, token, row - key_rows);
  } else if (row < value_rows + p.num_kv_heads && p.has_cache) {
    value_row<T, CacheT, kVec>(p, token, row - value_rows);
  }
}

}  // namespace kvrope
