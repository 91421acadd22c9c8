// What one thread moves of a row of v: two vectors, or single elements. Values are not rotated.
#pragma once

#include "cache_row.cuh"
#include "call_form.cuh"
#include "head_slice.cuh"

namespace kvrope {

template <int kVec, typename Params>
__device__ __forceinline__ SliceDims dims_of_value_slice(const Params& p, int slice) {
  if constexpr (kHasPlainOptions<Params>) return slice_of_whole_head<kVec>(p.v_head_size, false, slice);
  return slice_dims<kVec>({p.v_head_size, 0, 0}, true, slice);
}

template <typename T, typename CacheT, int kVec, typename Params>
class ValueVectors {
 public:
  __device__ __forceinline__ ValueVectors(const Params& p, const LaunchPlan&, int slice)
      : p_(p), dims_(dims_of_value_slice<kVec>(p, slice)) {}

  __device__ __forceinline__ bool is_empty() const { return !dims_.has_lo; }

  __device__ __forceinline__ void load(const T* row) {
    x_ = load_slice<T, kVec>(row, p_.v.dim_stride, dims_);
  }

  __device__ __forceinline__ void store(const CacheScale& scale, CacheT* row) const {
    store_slice(row, p_.value_cache.layout, dims_, to_cache_type<CacheT>(scale, x_, widen(x_)));
  }

 private:
  const Params& p_;
  const SliceDims dims_;
  HeadSlice<T, kVec> x_;
};

// Where values lie apart in the cache and rows are few. Lanes go along head dimensions: sectors that are
// written in part take L2 a while each, and the fewer lines a warp writes the better.
template <typename T, typename CacheT, int kVec, typename Params>
class ValueElements {
 public:
  __device__ __forceinline__ ValueElements(const Params& p, const LaunchPlan& plan, int slice)
      : p_(p), first_dim_(slice), step_(plan.threads_per_row) {}

  __device__ __forceinline__ bool is_empty() const { return first_dim_ >= p_.v_head_size; }

  __device__ __forceinline__ void load(const T* row) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int dim = first_dim_ + j * step_;
      if (dim < p_.v_head_size) x_[j] = row[product(static_cast<Index>(dim), p_.v.dim_stride)];
    }
  }

  __device__ __forceinline__ void store(const CacheScale& scale, CacheT* row) const {
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const int dim = first_dim_ + j * step_;
      if (dim < p_.v_head_size) {
        row[product(static_cast<Index>(dim), p_.value_cache.layout.dim_outer_stride)] =
            to_cache_type<CacheT>(scale, x_[j]);
      }
    }
  }

 private:
  using Index = IndexOf<Params>;
  static constexpr int kElements = 2 * kVec;  // of each thread of a row, which together hold a head

  const Params& p_;
  const int first_dim_, step_;
  T x_[kElements];
};

}  // namespace kvrope
