// A row of the cos/sin table, and the rotation of the slice that a thread holds.
#pragma once

#include "head_slice.cuh"
#include "rope_cache_params.h"

namespace kvrope {

template <int N, typename T>
__device__ __forceinline__ void load_columns_as(const T* from, int64_t stride, float (&values)[N]) {
  constexpr int kChunk = N * sizeof(T) <= 16 ? N : 16 / static_cast<int>(sizeof(T));
#pragma unroll
  for (int first = 0; first < N; first += kChunk) {
    const Vec<T, kChunk> chunk = load_vec<kChunk>(from + first * stride);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[first + j] = to_float(chunk.at[j]);
  }
}

struct TableRow {
  const void* data;
  int64_t stride;  // 1 wherever N > 1: the vector width is chosen so
  DType dtype;

  __device__ __forceinline__ TableRow(const CosSinTable& table, int64_t position)
      : data(static_cast<const char*>(table.data) + position * table.row_stride * size_of(table.dtype)),
        stride(table.column_stride),
        dtype(table.dtype) {}

  // N columns as fp32.
  template <int N>
  __device__ __forceinline__ void load(int column, float (&values)[N]) const {
    const int64_t at = column * stride;
    if (dtype == DType::fp32) {
      load_columns_as(static_cast<const float*>(data) + at, stride, values);
    } else if (dtype == DType::bf16) {
      load_columns_as(static_cast<const bf16*>(data) + at, stride, values);
    } else {
      load_columns_as(static_cast<const fp16*>(data) + at, stride, values);
    }
  }
};

// NeoX, and GPT-J with one element a vector: lo[j] and hi[j] are a pair.
template <int kVec>
__device__ __forceinline__ void rotate_across(SliceValues<kVec>& x, const TableRow& row, const RotaryStyle& style,
                                              int rotary_dim, int lo, int hi) {
  float cos[kVec], sin[kVec], lo_rotated[kVec];
  const int lo_column = style.cosine_column(lo, rotary_dim), hi_column = style.cosine_column(hi, rotary_dim);
  row.load(lo_column, cos);
  row.load(lo_column + style.sine_offset(rotary_dim), sin);
#pragma unroll
  for (int j = 0; j < kVec; ++j) lo_rotated[j] = rotate_first(x.lo[j], x.hi[j], cos[j], sin[j]);
  if (hi_column != lo_column) {
    row.load(hi_column, cos);
    row.load(hi_column + style.sine_offset(rotary_dim), sin);
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    x.hi[j] = rotate_second(x.lo[j], x.hi[j], cos[j], sin[j]);
    x.lo[j] = lo_rotated[j];
  }
}

// GPT-J: x[2j] and x[2j+1] are a pair.
template <int kVec>
__device__ __forceinline__ void rotate_within(float (&x)[kVec], const TableRow& row, const RotaryStyle& style,
                                              int rotary_dim, int element) {
  static_assert(kVec % 2 == 0);
  const int column = style.cosine_column(element, rotary_dim);
  const int sine_column = column + style.sine_offset(rotary_dim);
  float cos[kVec], sin[kVec];
  if (style.is_full_width) {
    row.load(column, cos);
    row.load(sine_column, sin);
  } else {
    float pair_cos[kVec / 2], pair_sin[kVec / 2];
    row.load(column, pair_cos);
    row.load(sine_column, pair_sin);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      cos[j] = pair_cos[j / 2];
      sin[j] = pair_sin[j / 2];
    }
  }
#pragma unroll
  for (int j = 0; j < kVec; j += 2) {
    const float a = x[j], b = x[j + 1];
    x[j] = rotate_first(a, b, cos[j], sin[j]);
    x[j + 1] = rotate_second(a, b, cos[j + 1], sin[j + 1]);
  }
}

// dims.lo and dims.hi are head dimensions; the table speaks of rotated elements, which start at rotary_dim_offset.
template <int kVec>
__device__ __forceinline__ void rotate_slice(SliceValues<kVec>& x, const TableRow& row, const RotaryStyle& style,
                                             const HeadShape& head, const SliceDims& dims) {
  const int lo = dims.lo - head.rotary_dim_offset, hi = dims.hi - head.rotary_dim_offset;
  if constexpr (kVec > 1) {
    if (!style.is_neox) {
      rotate_within(x.lo, row, style, head.rotary_dim, lo);
      rotate_within(x.hi, row, style, head.rotary_dim, hi);
      return;
    }
  }
  rotate_across(x, row, style, head.rotary_dim, lo, hi);
}

}  // namespace kvrope
