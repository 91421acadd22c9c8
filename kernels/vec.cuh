// N neighbouring elements as one register vector: one load, one store, packed conversions. At most 16 bytes.
#pragma once

#include "quantize.cuh"

namespace kvrope {

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  static_assert(sizeof(T) * N <= 16, "the widest access is 16 bytes");
  T at[N];
};

// The unsigned word type with the size of a vector.
template <int kBytes>
struct WordOf;
template <>
struct WordOf<1> {
  using type = unsigned char;
};
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned int;
};
template <>
struct WordOf<8> {
  using type = uint2;
};
template <>
struct WordOf<16> {
  using type = uint4;
};

template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}

// Rows are read once and written once: streaming accesses leave the cache to the table.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec_once(const T* from) {
  using Word = typename WordOf<sizeof(T) * N>::type;
  const Word word = __ldcs(reinterpret_cast<const Word*>(from));
  return *reinterpret_cast<const Vec<T, N>*>(&word);
}

template <typename T, int N>
__device__ __forceinline__ void store_vec_once(T* to, const Vec<T, N>& x) {
  using Word = typename WordOf<sizeof(T) * N>::type;
  __stcs(reinterpret_cast<Word*>(to), *reinterpret_cast<const Word*>(&x));
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

#ifdef __CUDACC__
template <>
__device__ __forceinline__ void narrow_pair<fp16>(float a, float b, fp16* to) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(a, b);
}

template <>
__device__ __forceinline__ void narrow_pair<bf16>(float a, float b, bf16* to) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}
#endif

#ifdef KVROPE_HAS_FP8_INSTRUCTIONS
template <>
__device__ __forceinline__ void narrow_pair<fp8_e4m3>(float a, float b, fp8_e4m3* to) {
  *reinterpret_cast<__nv_fp8x2_storage_t*>(to) = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
}

template <>
__device__ __forceinline__ void narrow_pair<fp8_e5m2>(float a, float b, fp8_e5m2* to) {
  *reinterpret_cast<__nv_fp8x2_storage_t*>(to) = __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E5M2);
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
