// One head of one token in a paged cache: scales, converts and stores slices of it.
#pragma once

#include <type_traits>

#include "head_slice.cuh"
#include "rope_cache_params.h"
#include "slots.cuh"

namespace kvrope {

template <typename CacheT, typename Index>
__device__ __forceinline__ CacheT* cache_row(const BasicPagedCache<Index>& cache,
                                             const Divisor<Index>& block_size, int64_t slot, int head) {
  const SlotInBlock<Index> at = locate(static_cast<Index>(slot), block_size);
  return static_cast<CacheT*>(cache.data) + cache.layout.row_offset(at.block, at.offset, head);
}

// x holds the slice in T, values the same before it was rounded to T. Unscaled rows of the cache's own type
// keep their bits.
template <typename CacheT, typename T, int kVec>
__device__ __forceinline__ HeadSlice<CacheT, kVec> to_cache_type(const ScaleArray& scales, int head,
                                                                 bool divide, const HeadSlice<T, kVec>& x,
                                                                 SliceValues<kVec> values) {
  if (scales.data != nullptr) {
    const Scale scale(scales.data[head * scales.head_stride], divide);
#pragma unroll
    for (int j = 0; j < kVec; ++j) {
      values.lo[j] = scale.apply(values.lo[j]);
      values.hi[j] = scale.apply(values.hi[j]);
    }
    return narrow<CacheT>(values);
  }
  if constexpr (std::is_same_v<T, CacheT>) return x;
  return narrow<CacheT>(values);
}

// Head dimensions that are neighbours in memory.
template <typename Index, typename CacheT, int kVec>
__device__ __forceinline__ void store_contiguous(const BasicCacheLayout<Index>& layout, CacheT* row,
                                                 const SliceDims& dims, const HeadSlice<CacheT, kVec>& x) {
  store_vec_once(row + layout.dim_offset(dims.lo), x.lo);
  if (dims.has_hi) store_vec_once(row + layout.dim_offset(dims.hi), x.hi);
}

// Head dimensions dim_outer_stride apart: value caches of the split layouts, which never split the head
// dimension.
template <typename Index, typename CacheT, int kVec>
__device__ __forceinline__ void store_scattered(const BasicCacheLayout<Index>& layout, CacheT* row, Index dim,
                                                const Vec<CacheT, kVec>& x) {
  row += product(dim, layout.dim_outer_stride);
#pragma unroll
  for (int j = 0; j < kVec; ++j) row[product(static_cast<Index>(j), layout.dim_outer_stride)] = x.at[j];
}

template <typename Index, typename CacheT, int kVec>
__device__ __forceinline__ void store_scattered(const BasicCacheLayout<Index>& layout, CacheT* row,
                                                const SliceDims& dims, const HeadSlice<CacheT, kVec>& x) {
  store_scattered(layout, row, static_cast<Index>(dims.lo), x.lo);
  if (dims.has_hi) store_scattered(layout, row, static_cast<Index>(dims.hi), x.hi);
}

}  // namespace kvrope
