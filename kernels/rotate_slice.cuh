// The rotation of the slice that a thread holds, with the cosines and sines of a table row.
#pragma once

#include "head_slice.cuh"
#include "rope_cache_params.h"

namespace kvrope {

// A row of the table. N columns are read as fp32, at most 16 bytes at once; stride is 1 wherever N > 1.
template <typename TableT>
struct TableRow {
  const TableT* data;
  int64_t stride;

  template <int N>
  __device__ __forceinline__ void load(int column, float (&values)[N]) const {
    constexpr int kChunk = N * sizeof(TableT) <= 16 ? N : 16 / static_cast<int>(sizeof(TableT));
    const TableT* from = data + (N == 1 ? column * stride : column);
#pragma unroll
    for (int first = 0; first < N; first += kChunk) {
      const Vec<TableT, kChunk> chunk = load_vec<kChunk>(from + first);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) values[first + j] = to_float(chunk.at[j]);
    }
  }
};

// NeoX, and GPT-J with one element a vector: lo[j] and hi[j] are a pair.
template <typename TableT, int kVec>
__device__ __forceinline__ void rotate_across(SliceValues<kVec>& x, const TableRow<TableT>& row,
                                              const RotaryStyle& style, int rotary_dim, int lo, int hi) {
  float cos[kVec], sin[kVec], lo_rotated[kVec];
  const int column = style.cosine_column(lo, rotary_dim), sine_offset = style.sine_offset(rotary_dim);
  row.load(column, cos);
  row.load(column + sine_offset, sin);
#pragma unroll
  for (int j = 0; j < kVec; ++j) lo_rotated[j] = rotate_first(x.lo[j], x.hi[j], cos[j], sin[j]);
  if (style.is_full_width) {  // the second elements have columns of their own
    row.load(hi, cos);
    row.load(hi + sine_offset, sin);
  }
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    x.hi[j] = rotate_second(x.lo[j], x.hi[j], cos[j], sin[j]);
    x.lo[j] = lo_rotated[j];
  }
}

// GPT-J: x[2j] and x[2j+1] are a pair.
template <typename TableT, int kVec>
__device__ __forceinline__ void rotate_within(float (&x)[kVec], const TableRow<TableT>& row,
                                              const RotaryStyle& style, int rotary_dim, int element) {
  static_assert(kVec % 2 == 0);
  const int column = style.cosine_column(element, rotary_dim),
            sine_column = column + style.sine_offset(rotary_dim);
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

template <typename TableT, bool kIsNeox, int kVec, typename Index>
__device__ __forceinline__ void rotate_slice_by(SliceValues<kVec>& x, const BasicRopeCacheParams<Index>& p,
                                                int64_t position, const SliceDims& dims) {
  const BasicCosSinTable<Index>& table = p.cos_sin;
  const TableRow<TableT> row = {
      static_cast<const TableT*>(table.data) + product(static_cast<Index>(position), table.row_stride),
      table.column_stride};
  const RotaryStyle style = {kIsNeox, table.is_full_width};
  const int lo = dims.lo - p.rotary_dim_offset,
            hi = dims.hi - p.rotary_dim_offset;  // among the rotated elements
  if constexpr (kIsNeox || kVec == 1) {
    rotate_across(x, row, style, p.rotary_dim, lo, hi);
  } else {
    rotate_within(x.lo, row, style, p.rotary_dim, lo);
    rotate_within(x.hi, row, style, p.rotary_dim, hi);
  }
}

template <bool kIsNeox, int kVec, typename Index>
__device__ __forceinline__ void rotate_slice(SliceValues<kVec>& x, const BasicRopeCacheParams<Index>& p,
                                             int64_t position, const SliceDims& dims) {
  switch (p.cos_sin.dtype) {
    case DType::fp16:
      return rotate_slice_by<fp16, kIsNeox>(x, p, position, dims);
    case DType::bf16:
      return rotate_slice_by<bf16, kIsNeox>(x, p, position, dims);
    default:
      return rotate_slice_by<float, kIsNeox>(x, p, position, dims);
  }
}

}  // namespace kvrope
