// RMSNorm of heads whose slices lie in the threads of a row. In two steps, as the rotation
// (rotate_slice.cuh): the weights are loaded first.
#pragma once

#include "extensions.cuh"
#include "head_slice.cuh"
#include "instruction_order.cuh"
#include "rms_norm.cuh"
#include "row_sum.cuh"

namespace kvrope {

// Weights of kVec neighbouring head dimensions as they stand in memory. Whoever asks for them waits for them.
template <typename T, int kVec>
class PendingWeights {
 public:
  PendingWeights() = default;

  __device__ __forceinline__ PendingWeights(const void* weights, int dim)
      : weights_(load_vec<kVec>(static_cast<const T*>(weights) + dim)) {}

  __device__ __forceinline__ float at(int j) const { return to_float(weights_.at(j)); }

 private:
  Vec<T, kVec> weights_;
};

// The squares of a slice that is the thread's part of the sum: pairs (i, i + D/2).
template <int kVec>
__device__ __forceinline__ float sum_of_squares(const SliceValues<kVec>& x) {
  float sums[kVec];
#pragma unroll
  for (int j = 0; j < kVec; ++j) sums[j] = sum_of_squares(x.lo[j], x.hi[j]);
#pragma unroll
  for (int n = kVec / 2; n > 0; n /= 2) {
#pragma unroll
    for (int j = 0; j < n; ++j) sums[j] = sums[2 * j] + sums[2 * j + 1];
  }
  return sums[0];
}

template <typename T, int kVec, Presence kNorm, typename Params>
class HeadNorm {
 public:
  using Weight = BasicNormWeight<IndexOf<Params>>;

  // Starts to load the weights of the slice.
  __device__ __forceinline__ HeadNorm(const Params& p, const LaunchPlan& plan, const Weight& weight,
                                      const SliceDims& dims, bool is_given)
      : p_(p), plan_(plan), weight_(weight), dims_(dims), is_given_(is_given) {
    if constexpr (kHoldsWeights) {
      if (is_given && !weight.is_fp32) lo_ = {weight.data, dims.lo}, hi_ = {weight.data, dims.hi};
    }
  }

  __device__ __forceinline__ bool is_given() const { return is_present<kNorm>(is_given_); }

  // Every thread of a row must come here, those without a slice of it too. x: the slice of `head`, which lies
  // in memory as it was. Its elements take more registers once they are fp32: the sum comes first.
  __device__ __forceinline__ SliceValues<kVec> norm(const T* head, int64_t dim_stride,
                                                    const HeadSlice<T, kVec>& x, bool has_slice,
                                                    int slice) const {
    const float part = has_slice ? part_of_sum(head, dim_stride, x, slice) : 0.0f;
    const float sum = sum_over_row<!kHasPlainOptions<Params>>(plan_, part);
    int lo = dims_.lo;
    if (!kHoldsWeights) work_out_now(lo);  // or the compiler holds addresses for all heads
    const float factor = norm_factor(sum, p_.inverse_head_size, p_.norm_eps);
    SliceValues<kVec> values = widen(x);
    if (weight_.is_fp32) {
      multiply_by_loaded<float>(values, factor, lo);
    } else if constexpr (kHoldsWeights) {
      multiply_by_held(values.lo, factor, lo_);
      multiply_by_held(values.hi, factor, hi_);
    } else {
      multiply_by_loaded<T>(values, factor, lo);
    }
    return values;
  }

 private:
  // 16-bit weights of short vectors in extended calls. Elsewhere registers are short: weights are loaded from
  // the cache again for each head.
  static constexpr bool kHoldsWeights = kNorm == Presence::always && kVec <= 4;
  using Held = PendingWeights<T, kHoldsWeights ? kVec : 1>;

  // The slice of a head that is rotated in part is another than the thread's part of the sum, which is read
  // besides.
  __device__ __forceinline__ float part_of_sum(const T* head, int64_t dim_stride, const HeadSlice<T, kVec>& x,
                                               int slice) const {
    if constexpr (kIsRotatedWhole<Params>) return sum_of_squares(widen(x));
    const SliceDims part = slice_of_whole_head<kVec>(p_.head_size, false, slice);
    return sum_of_squares(widen(load_slice<T, kVec>(head, dim_stride, part)));
  }

  __device__ __forceinline__ void multiply_by_held(float (&x)[kVec], float factor, const Held& held) const {
#pragma unroll
    for (int j = 0; j < kVec; ++j) x[j] = normed(x[j], factor, norm_weight(held.at(j), p_.weight_plus_one));
  }

  template <typename WeightT>
  __device__ __forceinline__ void multiply_by_loaded(SliceValues<kVec>& x, float factor, int lo) const {
    multiply_by_loaded<WeightT>(x.lo, factor, lo);
    multiply_by_loaded<WeightT>(x.hi, factor, lo + dims_.hi - dims_.lo);
  }

  // At most 16 bytes of weights at once. Their stride is 1 wherever kVec > 1.
  template <typename WeightT>
  __device__ __forceinline__ void multiply_by_loaded(float (&x)[kVec], float factor, int dim) const {
    constexpr int kChunk = kPerAccess<WeightT, kVec>;
    const WeightT* from = static_cast<const WeightT*>(weight_.data) +
                          (kVec == 1 ? product(static_cast<IndexOf<Params>>(dim), weight_.stride) : dim);
#pragma unroll
    for (int first = 0; first < kVec; first += kChunk) {
      const Vec<WeightT, kChunk> chunk = load_vec<kChunk>(from + first);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) {
        x[first + j] = normed(x[first + j], factor, norm_weight(to_float(chunk.at(j)), p_.weight_plus_one));
      }
    }
  }

  const Params& p_;
  const LaunchPlan& plan_;
  const Weight& weight_;
  const SliceDims& dims_;
  bool is_given_;
  Held lo_, hi_;
};

}  // namespace kvrope
