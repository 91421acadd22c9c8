// The elements of one head that a thread holds, in registers: load, store, widen to fp32 and narrow again.
#pragma once

#include "rotate.cuh"
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

template <typename T, int kVec>
__device__ __forceinline__ HeadSlice<T, kVec> load_slice(const T* head, int64_t stride, const SliceDims& dims) {
  HeadSlice<T, kVec> x;
  x.lo = load_vec<kVec>(head + (kVec == 1 ? dims.lo * stride : dims.lo));
  if (dims.has_hi) x.hi = load_vec<kVec>(head + (kVec == 1 ? dims.hi * stride : dims.hi));
  return x;
}

template <typename T, int kVec>
__device__ __forceinline__ void store_slice(T* head, int64_t stride, const SliceDims& dims,
                                            const HeadSlice<T, kVec>& x) {
  store_vec(head + (kVec == 1 ? dims.lo * stride : dims.lo), x.lo);
  if (dims.has_hi) store_vec(head + (kVec == 1 ? dims.hi * stride : dims.hi), x.hi);
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
