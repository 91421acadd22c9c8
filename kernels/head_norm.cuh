// RMSNorm of heads whose slices lie in the threads of a row. In two steps, as the rotation
// (rotate_slice.cuh): the weights are loaded first.
#pragma once

#include "head_slice.cuh"
#include "plain_call.cuh"
#include "rms_norm.cuh"
#include "row_sum.cuh"

namespace kvrope {

// Weights of kVec head dimensions as fp32, at most 16 bytes at once. The stride is 1 wherever kVec > 1.
template <int kVec, typename WeightT, typename Index>
__device__ __forceinline__ void load_weights(const BasicNormWeight<Index>& weight, int dim, float* values) {
  constexpr int kChunk = kVec * sizeof(WeightT) <= 16 ? kVec : 16 / static_cast<int>(sizeof(WeightT));
  const WeightT* from = static_cast<const WeightT*>(weight.data) +
                        (kVec == 1 ? product(static_cast<Index>(dim), weight.stride) : dim);
#pragma unroll
  for (int first = 0; first < kVec; first += kChunk) {
    const Vec<WeightT, kChunk> chunk = load_vec<kChunk>(from + first);
#pragma unroll
    for (int j = 0; j < kChunk; ++j) values[first + j] = to_float(chunk.at(j));
  }
}

// The squares of a slice that is the threads' part of the sum: pairs (i, i + D/2).
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

// kIsExtended: whether there is code for it.
template <typename T, int kVec, bool kIsNeox, bool kIsExtended, typename Params>
class HeadNorm {
 public:
  using Weight = BasicNormWeight<IndexOf<Params>>;

  __device__ __forceinline__ HeadNorm(const Params& p, const LaunchPlan& plan, const Weight& weight,
                                      const SliceDims& dims, int slice, bool is_wanted)
      : p_(p), plan_(plan), weight_(weight), dims_(dims), slice_(slice) {
    is_given_ = is_wanted && weight.data != nullptr;
    if (kHoldsWeights && is_given_ && dims.has_lo) hold();
  }

  __device__ __forceinline__ bool is_given() const { return kIsExtended && is_given_; }

  // Every thread of a row must come here, those past the last slice too. slice: that of `head`, which lies in
  // memory as it was. Its elements take more registers once they are fp32: the sum comes first.
  __device__ __forceinline__ SliceValues<kVec> norm(const T* head, int64_t dim_stride,
                                                    const HeadSlice<T, kVec>& slice) const {
    const float part = dims_.has_lo ? part_of_sum(head, dim_stride, slice) : 0.0f;
    const float sum = sum_over_row<!kHasPlainForm<Params>>(plan_, part);
    SliceValues<kVec> x = widen(slice);
    if (!dims_.has_lo) return x;
    const float factor = norm_factor(sum, p_.head_size, p_.norm_eps);
    if constexpr (kHoldsWeights) {
      multiply(x.lo, factor, held_.lo);
      multiply(x.hi, factor, held_.hi);
    } else if (weight_.is_fp32) {
      load_and_multiply<float>(x, factor);
    } else {
      load_and_multiply<T>(x, factor);
    }
    return x;
  }

 private:
  // Of long vectors, and of calls that ask for more, the registers are needed elsewhere: their weights are
  // loaded from the cache for each head.
  static constexpr bool kHoldsWeights = kIsExtended && kVec <= 4 && kHasPlainForm<Params>;

  __device__ __forceinline__ void hold() {
    if (weight_.is_fp32) {
      load_weights<kVec, float>(weight_, dims_.lo, held_.lo);
      load_weights<kVec, float>(weight_, dims_.hi, held_.hi);
    } else {
      load_weights<kVec, T>(weight_, dims_.lo, held_.lo);
      load_weights<kVec, T>(weight_, dims_.hi, held_.hi);
    }
  }

  // The slice of a head that is rotated in part is another than the thread's part of the sum, which is read
  // besides.
  __device__ __forceinline__ float part_of_sum(const T* head, int64_t dim_stride,
                                               const HeadSlice<T, kVec>& slice) const {
    if constexpr (kHasPlainForm<Params>) return sum_of_squares(widen(slice));
    const SliceDims part = slice_of_whole_head<kVec>(p_.head_size, false, slice_);
    return sum_of_squares(widen(load_slice<T, kVec>(head, dim_stride, part)));
  }

  __device__ __forceinline__ void multiply(float (&x)[kVec], float factor,
                                           const float (&weights)[kVec]) const {
#pragma unroll
    for (int j = 0; j < kVec; ++j) x[j] = normed(x[j], factor, norm_weight(weights[j], p_.weight_plus_one));
  }

  template <typename WeightT>
  __device__ __forceinline__ void load_and_multiply(SliceValues<kVec>& x, float factor) const {
    float weights[kVec];
    load_weights<kVec, WeightT>(weight_, dims_.lo, weights);
    multiply(x.lo, factor, weights);
    load_weights<kVec, WeightT>(weight_, dims_.hi, weights);
    multiply(x.hi, factor, weights);
  }

  const Params& p_;
  const LaunchPlan& plan_;
  const Weight& weight_;
  const SliceDims& dims_;
  int slice_;
  bool is_given_;
  SliceValues<kVec> held_;
};

}  // namespace kvrope
