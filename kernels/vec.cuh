// N neighbouring elements as one register vector: one load, one store, packed conversions. At most 16 bytes.
#pragma once

#include "quantize.cuh"

namespace kvrope {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16, "the widest access is 16 bytes");
  T at[N];
};

template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}

template <typename T, int N>
__device__ __forceinline__ void store_vec(T* to, const Vec<T, N>& x) {
  *reinterpret_cast<Vec<T, N>*>(to) = x;
}

template <typename T, int N>
__device__ __forceinline__ void widen(const Vec<T, N>& x, float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = to_float(x.at[j]);
}

// Two values in one instruction where the device has it.
template <typename T>
__device__ __forceinline__ void narrow_pair(float a, float b, T* to) {
  to[0] = from_float<T>(a);
  to[1] = from_float<T>(b);
}

template <>
__device__ __forceinline__ void narrow_pair<fp16>(float a, float b, fp16* to) {
  const __half2 pair = __floats2half2_rn(a, b);
  to[0].bits = __half_as_ushort(__low2half(pair));
  to[1].bits = __half_as_ushort(__high2half(pair));
}

template <>
__device__ __forceinline__ void narrow_pair<bf16>(float a, float b, bf16* to) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  to[0].bits = __bfloat16_as_ushort(__low2bfloat16(pair));
  to[1].bits = __bfloat16_as_ushort(__high2bfloat16(pair));
}

#ifdef KVROPE_HAS_FP8_INSTRUCTIONS
template <>
__device__ __forceinline__ void narrow_pair<fp8_e4m3>(float a, float b, fp8_e4m3* to) {
  const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
  to[0].bits = static_cast<uint8_t>(pair);
  to[1].bits = static_cast<uint8_t>(pair >> 8);
}

template <>
__device__ __forceinline__ void narrow_pair<fp8_e5m2>(float a, float b, fp8_e5m2* to) {
  const __nv_fp8x2_storage_t pair = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E5M2);
  to[0].bits = static_cast<uint8_t>(pair);
  to[1].bits = static_cast<uint8_t>(pair >> 8);
}
#endif

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> narrow(const float (&values)[N]) {
  Vec<T, N> x;
  if constexpr (N == 1) {
    x.at[0] = from_float<T>(values[0]);
  } else {
#pragma unroll
    for (int j = 0; j < N; j += 2) narrow_pair<T>(values[j], values[j + 1], &x.at[j]);
  }
  return x;
}

}  // namespace kvrope
