// One head of one token in a paged cache: scales, converts and stores slices of it.
#pragma once

#include <type_traits>

#include "call_form.cuh"
#include "dependent_launch.cuh"
#include "head_slice.cuh"
#include "slots.cuh"

namespace kvrope {

// The numbers by which a slot of a cache is checked, found and stored to; their neighbours in memory come
// along.
template <typename Params>
__device__ __forceinline__ void add_cache(WorkBeforeWait& early, const Params& p,
                                          const BasicPagedCache<IndexOf<Params>>& cache) {
  early.add(p.num_slots);
  early.add(p.block_size.divisor);
  early.add(cache.data);
  early.add(cache.layout.block_stride);
  early.add(cache.layout.head_stride);
  early.add(cache.layout.offset_outer_stride);
  early.add(cache.layout.dim_outer_stride);
}

template <typename CacheT, typename Index>
__device__ __forceinline__ CacheT* cache_row(const BasicPagedCache<Index>& cache,
                                             const Divisor<Index>& block_size, Index slot, int head) {
  const SlotInBlock<Index> at = locate(slot, block_size);
  return static_cast<CacheT*>(cache.data) + cache.layout.row_offset(at.block, at.offset, head);
}

// The scale of one head of a cache, where there is one (Scale, quantize.cuh).
class CacheScale {
 public:
  __device__ __forceinline__ CacheScale(bool is_given, float value, bool divides)
      : is_given_(is_given), scale_(1.0f, divides) {
    if (is_given) scale_ = Scale(value, divides);
  }

  __device__ __forceinline__ bool is_given() const { return is_given_; }

  __device__ __forceinline__ float apply(float x) const { return scale_.apply(x); }

  template <int kVec>
  __device__ __forceinline__ void apply(SliceValues<kVec>& x) const {
    if (!scale_.divide) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        x.lo[j] = scale_.apply(x.lo[j]);
        x.hi[j] = scale_.apply(x.hi[j]);
      }
      return;
    }
    // A division takes dozens of instructions: once in the code.
    float quotients[2 * kVec];
#pragma unroll
    for (int j = 0; j < kVec; ++j) quotients[j] = x.lo[j], quotients[kVec + j] = x.hi[j];
#pragma unroll 1
    for (int j = 0; j < 2 * kVec; ++j) quotients[j] = scale_.apply(quotients[j]);
#pragma unroll
    for (int j = 0; j < kVec; ++j) x.lo[j] = quotients[j], x.hi[j] = quotients[kVec + j];
  }

 private:
  bool is_given_;
  Scale scale_;
};

// The same as it stands in memory. Calls with usual options scale fp8 caches alone.
template <typename T, typename CacheT, typename Params>
class PendingScale {
 public:
  __device__ __forceinline__ PendingScale(const ScaleArray& scales, int head, bool is_wanted) {
    if constexpr (kHasUsualOptions<Params> && std::is_same_v<T, CacheT>) return;
    is_given_ = is_wanted && scales.data != nullptr;
    if (is_given_) value_ = scales.data[head * scales.head_stride];
  }

  __device__ __forceinline__ CacheScale scale(const Params& p) const {
    return {is_given_, value_, matches_unfused(p)};
  }

 private:
  bool is_given_ = false;
  float value_ = 1.0f;
};

template <typename T, typename CacheT, typename Params>
__device__ __forceinline__ CacheScale scale_of_head(const Params& p, const ScaleArray& scales, int head) {
  return PendingScale<T, CacheT, Params>(scales, head, true).scale(p);
}

// x holds the slice in T, values the same before it was rounded to T. Unscaled rows of the cache's own type
// keep their bits.
template <typename CacheT, typename T, int kVec>
__device__ __forceinline__ HeadSlice<CacheT, kVec> to_cache_type(const CacheScale& scale,
                                                                 const HeadSlice<T, kVec>& x,
                                                                 SliceValues<kVec> values) {
  if (scale.is_given()) {
    scale.apply(values);
    return narrow<CacheT>(values);
  }
  if constexpr (std::is_same_v<T, CacheT>) return x;
  return narrow<CacheT>(values);
}

template <typename CacheT, typename T>
__device__ __forceinline__ CacheT to_cache_type(const CacheScale& scale, T x) {
  if (scale.is_given()) return from_float<CacheT>(scale.apply(to_float(x)));
  if constexpr (std::is_same_v<T, CacheT>) return x;
  return from_float<CacheT>(to_float(x));
}

// Head dimensions of a vector are neighbours in memory.
template <typename Index, typename CacheT, int kVec>
__device__ __forceinline__ void store_slice(CacheT* row, const BasicCacheLayout<Index>& layout,
                                            const SliceDims& dims, const HeadSlice<CacheT, kVec>& x) {
  store_vec_once(row + layout.dim_offset(dims.lo), x.lo);
  if (dims.has_hi) store_vec_once(row + layout.dim_offset(dims.hi), x.hi);
}

}  // namespace kvrope
