// One value from storage to fp32 and back, and the scaling on its way into the cache. Every conversion rounds
// to nearest, ties to even. fp16, bf16: IEEE casts, every NaN becomes 0x7fff. fp8: overflow and infinities
// saturate to the largest finite value, NaN becomes 0x7f. Device instructions and portable code give the same
// bits.
#pragma once

#include "minifloat.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#endif

namespace kvrope {

KVROPE_HOST_DEVICE float to_float(float value) {
  return value;
}

KVROPE_HOST_DEVICE float to_float(fp16 value) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(value.bits));
#else
  return Fp16Format::to_float<0x7c00u>(value.bits);
#endif
}

KVROPE_HOST_DEVICE float to_float(bf16 value) {
  return float_of(static_cast<uint32_t>(value.bits) << 16);
}

template <typename T>
KVROPE_HOST_DEVICE T from_float(float value);

template <>
KVROPE_HOST_DEVICE float from_float<float>(float value) {
  return value == value ? value : float_of(0x7fffffffu);
}

template <>
KVROPE_HOST_DEVICE fp16 from_float<fp16>(float value) {
#ifdef __CUDA_ARCH__
  return {__half_as_ushort(__float2half_rn(value))};
#else
  return {static_cast<uint16_t>(Fp16Format::from_float(value))};
#endif
}

template <>
KVROPE_HOST_DEVICE bf16 from_float<bf16>(float value) {
#ifdef __CUDA_ARCH__
  return {__bfloat16_as_ushort(__float2bfloat16_rn(value))};
#else
  const uint32_t bits = bits_of(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(value == value ? rounded : 0x7fffu)};
#endif
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define KVROPE_HAS_FP8_INSTRUCTIONS 1
#endif

template <>
KVROPE_HOST_DEVICE fp8_e4m3 from_float<fp8_e4m3>(float value) {
#ifdef KVROPE_HAS_FP8_INSTRUCTIONS
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3)};
#else
  return {static_cast<uint8_t>(E4m3Format::from_float(value))};
#endif
}

template <>
KVROPE_HOST_DEVICE fp8_e5m2 from_float<fp8_e5m2>(float value) {
#ifdef KVROPE_HAS_FP8_INSTRUCTIONS
  return {__nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E5M2)};
#else
  return {static_cast<uint8_t>(E5m2Format::from_float(value))};
#endif
}

// What is stored for x. The fused path multiplies by the reciprocal; match_unfused divides, as a cache writer
// that runs alone does. Both are IEEE operations: the CPU and the GPU agree.
struct Scale {
  float value;
  float reciprocal;
  bool divide;

  KVROPE_HOST_DEVICE Scale(float value, bool divide)
      : value(value), reciprocal(1.0f / value), divide(divide) {}

  KVROPE_HOST_DEVICE float apply(float x) const { return divide ? x / value : x * reciprocal; }
};

}  // namespace kvrope
