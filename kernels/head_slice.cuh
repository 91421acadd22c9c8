// The elements of one head that a thread holds, in registers: load, store, widen to fp32 and narrow again.
#pragma once

#include "rope_cache_params.h"
#include "slice_dims.cuh"
#include "vec.cuh"

namespace kvrope {

template <typename T, int kVec>
struct HeadSlice {
  Vec<T, kVec> lo, hi;
};

template <int kVec>
struct SliceValues {
  float lo[kVec], hi[kVec];
};

template <typename T, typename Index>
__device__ __forceinline__ T* head_of(const BasicHeadRows<Index>& rows, Index token, int head) {
  return static_cast<T*>(rows.data) + product(token, rows.token_stride) +
         product(static_cast<Index>(head), rows.head_stride);
}

// dim_stride is 1 wherever kVec > 1: the vector width is chosen so.
template <typename T, int kVec>
__device__ __forceinline__ HeadSlice<T, kVec> load_slice(const T* head, int64_t dim_stride,
                                                         const SliceDims& dims) {
  if constexpr (kVec > 1) dim_stride = 1;
  HeadSlice<T, kVec> x;
  x.lo = load_vec_once<kVec>(head + dims.lo * dim_stride);
  if (dims.has_hi) x.hi = load_vec_once<kVec>(head + dims.hi * dim_stride);
  return x;
}

template <typename T, int kVec>
__device__ __forceinline__ void store_slice(T* head, int64_t dim_stride, const SliceDims& dims,
                                            const HeadSlice<T, kVec>& x) {
  if constexpr (kVec > 1) dim_stride = 1;
  store_vec_once(head + dims.lo * dim_stride, x.lo);
  if (dims.has_hi) store_vec_once(head + dims.hi * dim_stride, x.hi);
}

template <typename T, int kVec>
__device__ __forceinline__ SliceValues<kVec> widen(const HeadSlice<T, kVec>& x) {
  SliceValues<kVec> values;
  widen(x.lo, values.lo);
  widen(x.hi, values.hi);
  return values;
}

template <typename T, int kVec>
__device__ __forceinline__ HeadSlice<T, kVec> narrow(const SliceValues<kVec>& values) {
  return {narrow<T, kVec>(values.lo), narrow<T, kVec>(values.hi)};
}

template <typename T, int kVec>
__device__ __forceinline__ HeadSlice<T, kVec> filled(float value) {
  SliceValues<kVec> values;
#pragma unroll
  for (int j = 0; j < kVec; ++j) values.lo[j] = values.hi[j] = value;
  return narrow<T>(values);
}

}  // namespace kvrope
