// The rotation of the slices that a thread holds, in two steps: cosines and sines are loaded first, so that
// what else there is to do is done while they are on their way.
#pragma once

#include "dependent_launch.cuh"
#include "extensions.cuh"
#include "head_slice.cuh"
#include "rotate.cuh"
#include "row_indices.cuh"

namespace kvrope {

// What does not depend on the row is added first: it is there before the position is. In compact calls a
// row's stride in bytes has 32 bits (compact_params.h).
template <int N, typename TableT, typename Index>
__device__ __forceinline__ const TableT* at_column(const BasicCosSinTable<Index>& table, Index row,
                                                   int column) {
  const auto* first = static_cast<const TableT*>(table.data) +
                      (N == 1 ? product(static_cast<Index>(column), table.column_stride) : column);
  const Index row_bytes = table.row_stride * static_cast<Index>(sizeof(TableT));
  return reinterpret_cast<const TableT*>(reinterpret_cast<const char*>(first) + product(row, row_bytes));
}

// Columns of a table row as fp32, at most 16 bytes at once. The stride of columns is 1 wherever N > 1.
template <int N, typename TableT, typename Index>
__device__ __forceinline__ void load_columns(const BasicCosSinTable<Index>& table, Index row, int column,
                                             float* values) {
  constexpr int kChunk = kPerAccess<TableT, N>;
  const TableT* from = at_column<N, TableT>(table, row, column);
#pragma unroll
  for (int first = 0; first < N; first += kChunk) {
    const Vec<TableT, kChunk> chunk = load_vec<kChunk>(from + first);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[first + j] = to_float(chunk.at(j));
  }
}

// The same of a token with a position on each axis: axes has the axis of each frequency, to which
// kPerFrequency columns belong.
template <int N, int kPerFrequency, typename TableT, typename Index>
__device__ __forceinline__ void load_columns(const BasicCosSinTable<Index>& table,
                                             const CheckedPosition<Index, kNumAxes>& position, uint32_t axes,
                                             int column, float* values) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    const Index row = position.on(axes >> FrequencyAxes::kBits * (j / kPerFrequency));
    values[j] = to_float(*at_column<N, TableT>(table, row, column + j));
  }
}

// Cosines and sines of N columns.
template <int N, int kPerFrequency, Presence kAxes, typename TableT, typename Params, typename Position>
__device__ __forceinline__ void load_angles_as(const Params& p, const Position& position, uint32_t axes,
                                               int column, int sine_offset, float* cos, float* sin) {
  if constexpr (kAxes != Presence::never) {
    // Whether all frequencies of the vector have one axis, as most do where sections lie one after the other.
    constexpr uint32_t kNeighbours = (1u << FrequencyAxes::kBits * (N / kPerFrequency - 1)) - 1;
    const bool is_of_one_axis = ((axes ^ axes >> FrequencyAxes::kBits) & kNeighbours) == 0;
    if (has_axes<kAxes>(p) && !is_of_one_axis) {
      load_columns<N, kPerFrequency, TableT>(p.cos_sin, position, axes, column, cos);
      load_columns<N, kPerFrequency, TableT>(p.cos_sin, position, axes, column + sine_offset, sin);
      return;
    }
  }
  const auto row = position.on(axes);
  load_columns<N, TableT>(p.cos_sin, row, column, cos);
  load_columns<N, TableT>(p.cos_sin, row, column + sine_offset, sin);
}

template <int N, int kPerFrequency, Presence kAxes, typename Params, typename Position>
__device__ __forceinline__ void load_angles(const Params& p, const Position& position, uint32_t axes,
                                            int column, int sine_offset, float* cos, float* sin) {
  switch (table_dtype(p)) {
    case DType::fp16:
      load_angles_as<N, kPerFrequency, kAxes, fp16>(p, position, axes, column, sine_offset, cos, sin);
      break;
    case DType::bf16:
      load_angles_as<N, kPerFrequency, kAxes, bf16>(p, position, axes, column, sine_offset, cos, sin);
      break;
    default:
      load_angles_as<N, kPerFrequency, kAxes, float>(p, position, axes, column, sine_offset, cos, sin);
  }
}

// What rotates the slices of one token, any number of heads. The pairs of NeoX, and of GPT-J with one element
// a vector, lie across the two vectors of a slice: lo[j] and hi[j]. Those of GPT-J lie within each: x[2j] and
// x[2j + 1].
template <bool kIsNeox, int kVec, typename Params, Presence kAxes>
class SliceRotation {
 public:
  using Position = CheckedPosition<IndexOf<Params>, kNumAxesOf<kAxes>>;

  __device__ __forceinline__ SliceRotation(const Params& p, const SliceDims& dims)
      : p_(p),
        is_rotated_(dims.is_rotated),
        lo_(dims.lo - rotary_dim_offset(p)),
        hi_(dims.hi - rotary_dim_offset(p)) {
    if (!has_axes<kAxes>(p) || !is_rotated_) return;
    const auto lo = static_cast<unsigned>(lo_), hi = static_cast<unsigned>(hi_);
    axes_of_lo_ = p.axes.from(kIsNeox ? lo : lo / 2);
    axes_of_hi_ = kLiesAcross ? axes_of_lo_ : p.axes.from(hi / 2);
  }

  // What of load() is worked out before there is a position.
  static __device__ __forceinline__ void add_to(WorkBeforeWait& early, const Params& p,
                                                const SliceDims& dims) {
    early.add(p.cos_sin.num_rows);
    early.add(p.cos_sin.row_stride);
    early.add(p.rotary_dim);
    if constexpr (kHasPlainOptions<Params>) {
      early.add(static_cast<const float*>(p.cos_sin.data) + (kIsNeox ? dims.lo : dims.lo / 2));
    } else {
      early.add(p.cos_sin.data);
    }
  }

  // Starts to load the angles of the slice's kVec pairs. In a full-width table the two elements of a pair
  // have columns of their own, which are loaded when they are used.
  __device__ __forceinline__ void load(const Position& position) {
    position_ = position;
    if (!is_rotated_ || !position.is_valid || has_full_width_table(p_)) return;
    const int sine_offset = static_cast<int>(static_cast<unsigned>(p_.rotary_dim) / 2);
    if constexpr (kIsNeox) {
      load_angles<kVec, 1, kAxes>(p_, position, axes_of_lo_, lo_, sine_offset, cos_, sin_);
    } else if constexpr (kVec == 1) {
      load_angles<1, 1, kAxes>(p_, position, axes_of_lo_, lo_ / 2, sine_offset, cos_, sin_);
    } else {
      constexpr int kHalf = kVec / 2;
      load_angles<kHalf, 1, kAxes>(p_, position, axes_of_lo_, lo_ / 2, sine_offset, cos_, sin_);
      load_angles<kHalf, 1, kAxes>(p_, position, axes_of_hi_, hi_ / 2, sine_offset, cos_ + kHalf,
                                   sin_ + kHalf);
    }
  }

  __device__ __forceinline__ void rotate(SliceValues<kVec>& x) const {
    if (has_full_width_table(p_)) {
      SliceValues<kVec> copy = x;  // x itself stays in registers
      rotate_by_full_width(p_, position_, axes_of_lo_, axes_of_hi_, lo_, hi_, copy);
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

  static __device__ __forceinline__ void rotate_pair(float& first, float& second, float first_cos,
                                                     float first_sin, float second_cos, float second_sin) {
    const float a = first, b = second;
    first = rotate_first(a, b, first_cos, first_sin);
    second = rotate_second(a, b, second_cos, second_sin);
  }

  // Out of line: twice as many angles would take registers from the common case.
  static __device__ __noinline__ void rotate_by_full_width(const Params& p, Position position,
                                                           uint32_t axes_of_lo, uint32_t axes_of_hi,
                                                           int first_lo, int first_hi, SliceValues<kVec>& x) {
    constexpr int kColumns = kVec < 4 ? kVec : 4, kPerFrequency = kLiesAcross ? 1 : 2;
#pragma unroll
    for (int i = 0; i < kVec; i += kColumns) {
      const int shift = FrequencyAxes::kBits * i / kPerFrequency;
      float lo_cos[kColumns], lo_sin[kColumns], hi_cos[kColumns], hi_sin[kColumns];
      load_angles<kColumns, kPerFrequency, kAxes>(p, position, axes_of_lo >> shift, first_lo + i,
                                                  p.rotary_dim, lo_cos, lo_sin);
      load_angles<kColumns, kPerFrequency, kAxes>(p, position, axes_of_hi >> shift, first_hi + i,
                                                  p.rotary_dim, hi_cos, hi_sin);
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
  bool is_rotated_;
  int lo_, hi_;  // counted from the first rotated element
  uint32_t axes_of_lo_ = 0, axes_of_hi_ = 0;
  Position position_;
  float cos_[kVec], sin_[kVec];
};

}  // namespace kvrope
