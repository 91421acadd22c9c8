// The rotation of the slices that a thread holds, in two steps: cosines and sines are loaded first, so that
// what else there is to do is done while they are on their way.
#pragma once

#include "head_slice.cuh"
#include "plain_call.cuh"
#include "rotate.cuh"
#include "row_indices.cuh"

namespace kvrope {

// Columns of a table row as fp32, at most 16 bytes at once. The stride of columns is 1 wherever N > 1.
template <int N, typename TableT, typename Index>
__device__ __forceinline__ void load_columns(const BasicCosSinTable<Index>& table, Index row, int column,
                                             float* values) {
  constexpr int kChunk = N * sizeof(TableT) <= 16 ? N : 16 / static_cast<int>(sizeof(TableT));
  const TableT* from = static_cast<const TableT*>(table.data) + product(row, table.row_stride) +
                       (N == 1 ? product(static_cast<Index>(column), table.column_stride) : column);
#pragma unroll
  for (int first = 0; first < N; first += kChunk) {
    const Vec<TableT, kChunk> chunk = load_vec<kChunk>(from + first);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[first + j] = to_float(chunk.at(j));
  }
}

// Cosines and sines of N columns, which belong to as many frequencies, or to half as many where kIsInPairs.
// With positions on several axes each column has a row of its own.
template <int N, bool kIsInPairs, typename TableT, typename Params, typename Position>
__device__ __forceinline__ void load_angles_as(const Params& p, const Position& position, int column,
                                               int sine_offset, int frequency, float* cos, float* sin) {
  if (Position::kAxes == 1 || !has_axes(p)) {
    load_columns<N, TableT>(p.cos_sin, position.value[0], column, cos);
    load_columns<N, TableT>(p.cos_sin, position.value[0], column + sine_offset, sin);
    return;
  }
  const uint32_t axes = p.axes.from(frequency);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const auto row = position.on(axes >> FrequencyAxes::kBits * (kIsInPairs ? j / 2 : j));
    load_columns<1, TableT>(p.cos_sin, row, column + j, cos + j);
    load_columns<1, TableT>(p.cos_sin, row, column + j + sine_offset, sin + j);
  }
}

template <int N, bool kIsInPairs, typename Params, typename Position>
__device__ __forceinline__ void load_angles(const Params& p, const Position& position, int column,
                                            int sine_offset, int frequency, float* cos, float* sin) {
  switch (table_dtype(p)) {
    case DType::fp16:
      load_angles_as<N, kIsInPairs, fp16>(p, position, column, sine_offset, frequency, cos, sin);
      break;
    case DType::bf16:
      load_angles_as<N, kIsInPairs, bf16>(p, position, column, sine_offset, frequency, cos, sin);
      break;
    default:
      load_angles_as<N, kIsInPairs, float>(p, position, column, sine_offset, frequency, cos, sin);
  }
}

// What rotates the slices of one token, any number of heads. The pairs of NeoX, and of GPT-J with one element
// a vector, lie across the two vectors of a slice: lo[j] and hi[j]. Those of GPT-J lie within each: x[2j] and
// x[2j + 1].
template <bool kIsNeox, int kVec, typename Params, typename Position>
class SliceRotation {
 public:
  // Starts to load the angles of the slice's kVec pairs. In a full-width table the two elements of a pair
  // have columns of their own, which are loaded when they are used.
  __device__ __forceinline__ SliceRotation(const Params& p, const SliceDims& dims, const Position& position)
      : p_(p), position_(position), lo_(dims.lo - rotary_dim_offset(p)), hi_(dims.hi - rotary_dim_offset(p)) {
    if (!dims.is_rotated || !position.is_valid || has_full_width_table(p)) return;
    const int sine_offset = static_cast<int>(static_cast<unsigned>(p.rotary_dim) / 2);
    if constexpr (kIsNeox) {
      load_angles_of<kVec>(lo_, sine_offset, cos_, sin_);
    } else if constexpr (kVec == 1) {
      load_angles_of<1>(lo_ / 2, sine_offset, cos_, sin_);
    } else {
      load_angles_of<kVec / 2>(lo_ / 2, sine_offset, cos_, sin_);
      load_angles_of<kVec / 2>(hi_ / 2, sine_offset, cos_ + kVec / 2, sin_ + kVec / 2);
    }
  }

  __device__ __forceinline__ void rotate(SliceValues<kVec>& x) const {
    if (has_full_width_table(p_)) {
      SliceValues<kVec> copy = x;  // x itself stays in registers
      rotate_by_full_width(p_, position_, lo_, hi_, copy);
      x = copy;
      return;
    }
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      if constexpr (kLiesAcross) {
        rotate_pair(x.lo[j], x.hi[j], cos_[j], sin_[j], cos_[j], sin_[j]);
      } else {
        float* pair = j < kVec / 2 ? x.lo + 2 * j : x.hi + 2 * j - kVec;
        rotate_pair(pair[0], pair[1], cos_[j], sin_[j], cos_[j], sin_[j]);
      }
    }
  }

 private:
  static constexpr bool kLiesAcross = kIsNeox || kVec == 1;

  // In a table of half width a frequency has one column.
  template <int N>
  __device__ __forceinline__ void load_angles_of(int frequency, int sine_offset, float* cos, float* sin) {
    load_angles<N, false>(p_, position_, frequency, sine_offset, frequency, cos, sin);
  }

  static __device__ __forceinline__ void rotate_pair(float& first, float& second, float first_cos,
                                                     float first_sin, float second_cos, float second_sin) {
    const float a = first, b = second;
    first = rotate_first(a, b, first_cos, first_sin);
    second = rotate_second(a, b, second_cos, second_sin);
  }

  // Out of line: twice as many angles would take registers from the common case.
  static __device__ __noinline__ void rotate_by_full_width(const Params& p, Position position, int first_lo,
                                                           int first_hi, SliceValues<kVec>& x) {
    constexpr int kColumns = kVec < 4 ? kVec : 4;
    constexpr bool kIsInPairs = !kLiesAcross;
#pragma unroll
    for (int i = 0; i < kVec; i += kColumns) {
      float lo_cos[kColumns], lo_sin[kColumns], hi_cos[kColumns], hi_sin[kColumns];
      load_angles<kColumns, kIsInPairs>(p, position, first_lo + i, p.rotary_dim,
                                        kIsNeox ? first_lo + i : (first_lo + i) / 2, lo_cos, lo_sin);
      load_angles<kColumns, kIsInPairs>(p, position, first_hi + i, p.rotary_dim,
                                        kIsNeox ? first_lo + i : (first_hi + i) / 2, hi_cos, hi_sin);
      float *lo = x.lo + i, *hi = x.hi + i;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        if constexpr (kLiesAcross) {
          rotate_pair(lo[j], hi[j], lo_cos[j], lo_sin[j], hi_cos[j], hi_sin[j]);
        } else if (j % 2 == 0) {
          rotate_pair(lo[j], lo[j + 1], lo_cos[j], lo_sin[j], lo_cos[j + 1], lo_sin[j + 1]);
          rotate_pair(hi[j], hi[j + 1], hi_cos[j], hi_sin[j], hi_cos[j + 1], hi_sin[j + 1]);
        }
      }
    }
  }

  const Params& p_;
  Position position_;
  int lo_, hi_;  // counted from the first rotated element
  float cos_[kVec], sin_[kVec];
};

}  // namespace kvrope
