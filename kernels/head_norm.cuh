// RMSNorm of heads whose slices lie in the threads of a row. In two steps, as the rotation
// (rotate_slice.cuh): the weights are loaded first.
#pragma once

#include "extensions.cuh"
#include "head_slice.cuh"
#include "rms_norm.cuh"
#include "row_sum.cuh"

namespace kvrope {

// Weights of kVec head dimensions as they stand in memory, in WeightT. Whoever asks for them waits for them.
// The stride is 1 wherever kVec > 1.
template <typename T, int kVec>
class PendingWeights {
 public:
  PendingWeights() = default;

  template <typename Index>
  __device__ __forceinline__ PendingWeights(const BasicNormWeight<Index>& weight, int dim) {
    const int64_t at = kVec == 1 ? product(static_cast<Index>(dim), weight.stride) : dim;
    weight.is_fp32 ? load(static_cast<const float*>(weight.data) + at)
                   : load(static_cast<const T*>(weight.data) + at);
  }

  __device__ __forceinline__ void widen(bool is_fp32, float (&values)[kVec]) const {
    is_fp32 ? widen_as<float>(values) : widen_as<T>(values);
  }

 private:
  // At most 16 bytes at once.
  template <typename WeightT>
  static constexpr int kChunk = kVec * sizeof(WeightT) <= 16 ? kVec : 16 / static_cast<int>(sizeof(WeightT));

  template <typename WeightT>
  __device__ __forceinline__ void load(const WeightT* from) {
    using Chunk = Vec<WeightT, kChunk<WeightT>>;
#pragma unroll
    for (int i = 0; i < kVec / kChunk<WeightT>; ++i) {
      const Chunk chunk = load_vec<kChunk<WeightT>>(from + i * kChunk<WeightT>);
#pragma unroll
      for (int j = 0; j < Chunk::kWords; ++j) words_[i * Chunk::kWords + j] = chunk.words[j];
    }
  }

  template <typename WeightT>
  __device__ __forceinline__ void widen_as(float (&values)[kVec]) const {
    using Chunk = Vec<WeightT, kChunk<WeightT>>;
#pragma unroll
    for (int i = 0; i < kVec / kChunk<WeightT>; ++i) {
      Chunk chunk;
#pragma unroll
      for (int j = 0; j < Chunk::kWords; ++j) {
        chunk.words[j] = static_cast<typename Chunk::Word>(words_[i * Chunk::kWords + j]);
      }
#pragma unroll
      for (int j = 0; j < kChunk<WeightT>; ++j) values[i * kChunk<WeightT> + j] = to_float(chunk.at(j));
    }
  }

  uint32_t words_[kVec];  // of fp32; the first half of them of 16-bit weights
};

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

template <typename T, int kVec, Presence kNorm, typename Params>
class HeadNorm {
 public:
  using Weight = BasicNormWeight<IndexOf<Params>>;

  // Starts to load the weights of the slice.
  __device__ __forceinline__ HeadNorm(const Params& p, const LaunchPlan& plan, const Weight& weight,
                                      const SliceDims& dims, bool is_wanted)
      : p_(p), plan_(plan), weight_(weight), dims_(dims) {
    is_given_ = is_present<kNorm>(is_wanted && weight.data != nullptr);
    if (kHoldsWeights && is_given_) lo_ = {weight, dims.lo}, hi_ = {weight, dims.hi};
  }

  __device__ __forceinline__ bool is_given() const { return is_present<kNorm>(is_given_); }

  // Every thread of a row must come here, those without a slice of it too. x: the slice of `head`, which lies
  // in memory as it was. Its elements take more registers once they are fp32: the sum comes first.
  __device__ __forceinline__ SliceValues<kVec> norm(const T* head, int64_t dim_stride,
                                                    const HeadSlice<T, kVec>& x, bool has_slice,
                                                    int slice) const {
    const float part = has_slice ? part_of_sum(head, dim_stride, x, slice) : 0.0f;
    const float sum = sum_over_row<!kHasPlainForm<Params>>(plan_, part);
    const float factor = norm_factor(sum, p_.inverse_head_size, p_.norm_eps);
    SliceValues<kVec> values = widen(x);
    multiply(values.lo, factor, kHoldsWeights ? lo_ : PendingWeights<T, kVec>(weight_, dims_.lo));
    multiply(values.hi, factor, kHoldsWeights ? hi_ : PendingWeights<T, kVec>(weight_, dims_.hi));
    return values;
  }

 private:
  // Of long vectors, and of calls that ask for more, the registers are needed elsewhere: their weights are
  // loaded from the cache for each head.
  static constexpr bool kHoldsWeights = kNorm == Presence::always && kVec <= 4;

  // The slice of a head that is rotated in part is another than the thread's part of the sum, which is read
  // besides.
  __device__ __forceinline__ float part_of_sum(const T* head, int64_t dim_stride, const HeadSlice<T, kVec>& x,
                                               int slice) const {
    if constexpr (kHasPlainForm<Params>) return sum_of_squares(widen(x));
    const SliceDims part = slice_of_whole_head<kVec>(p_.head_size, false, slice);
    return sum_of_squares(widen(load_slice<T, kVec>(head, dim_stride, part)));
  }

  __device__ __forceinline__ void multiply(float (&x)[kVec], float factor,
                                           const PendingWeights<T, kVec>& pending) const {
    float weights[kVec];
    pending.widen(weight_.is_fp32, weights);
#pragma unroll
    for (int j = 0; j < kVec; ++j) x[j] = normed(x[j], factor, norm_weight(weights[j], p_.weight_plus_one));
  }

  const Params& p_;
  const LaunchPlan& plan_;
  const Weight& weight_;
  const SliceDims& dims_;
  bool is_given_;
  PendingWeights<T, kVec> lo_, hi_;
};

}  // namespace kvrope
