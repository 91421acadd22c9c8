// Conversion of one value between fp32 and a smaller IEEE-like format, in portable integer arithmetic:
// what the CPU kernel uses, what devices without the hardware instruction use for fp8, and what the tests
// hold the hardware instruction against. Comparisons are of floats: for vectors of unsigned integers x86-64
// has no single instruction.
#pragma once

#include <cstdint>
#include <cstring>

#include "dtype.h"

namespace kvrope {

KVROPE_HOST_DEVICE uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

KVROPE_HOST_DEVICE float float_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

// One sign bit, kExponentBits, kMantissaBits; kLargest is the code that overflow gives (the infinity of an
// IEEE cast, the largest finite value of a saturating one) and kNan the one code that every NaN becomes.
template <int kExponentBits, int kMantissaBits, uint32_t kLargest, uint32_t kNan>
struct Minifloat {
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kDroppedBits = 23 - kMantissaBits;
  static constexpr uint32_t kSignBit = 1u << (kExponentBits + kMantissaBits);
  static constexpr int kSignShift = 31 - kExponentBits - kMantissaBits;
  static constexpr uint32_t kSmallestNormal = static_cast<uint32_t>(128 - kBias) << 23;  // as fp32 bits

  // Rounds to nearest, ties to even.
  static KVROPE_HOST_DEVICE uint32_t from_float(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t sign = (bits >> kSignShift) & kSignBit;

    // A subnormal result: adding a power of two whose last place is the format's smallest step rounds for us.
    constexpr uint32_t kStep = kSmallestNormal + (static_cast<uint32_t>(kDroppedBits) << 23);
    const uint32_t subnormal = bits_of(float_of(magnitude) + float_of(kStep)) - kStep;
    // A normal result: the new exponent bias, and a carry of the dropped bits into the kept ones.
    const uint32_t is_odd = (magnitude >> kDroppedBits) & 1u;
    constexpr uint32_t kHalfStep = (1u << (kDroppedBits - 1)) - 1u;
    constexpr uint32_t kRebias = static_cast<uint32_t>(127 - kBias) << 23;
    const uint32_t normal = (magnitude + (kHalfStep - kRebias) + is_odd) >> kDroppedBits;

    uint32_t code = float_of(magnitude) < float_of(kSmallestNormal) ? subnormal : normal;
    code = code < kLargest ? code : kLargest;
    return value == value ? sign | code : kNan;
  }

  // Exact. kSpecial is the smallest code that is not finite.
  template <uint32_t kSpecial>
  static KVROPE_HOST_DEVICE float to_float(uint32_t code) {
    const uint32_t magnitude = code & (kSignBit - 1u);
    const uint32_t sign = (code & kSignBit) << kSignShift;
    constexpr uint32_t kRebias = static_cast<uint32_t>(254 - kBias) << 23;  // 2^(127 - bias)
    const float finite = float_of(magnitude << kDroppedBits) * float_of(kRebias);
    const float special = float_of(kSpecial << kDroppedBits) * float_of(kRebias);
    return float_of(sign | bits_of(finite) | (finite < special ? 0u : 0x7f800000u));
  }
};

using Fp16Format = Minifloat<5, 10, 0x7c00u, 0x7fffu>;
using E4m3Format = Minifloat<4, 3, 0x7eu, 0x7fu>;
using E5m2Format = Minifloat<5, 2, 0x7bu, 0x7fu>;

}  // namespace kvrope
