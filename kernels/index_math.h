// Index arithmetic in two widths.
//
// Parameters come in two forms (rope_cache_params.h): with 64-bit strides and sizes, which take any call, and
// compact, with 32-bit ones, for calls whose strides, rows, table rows and slots all fit in 31 bits, those
// that are used in bytes as bytes (compact_params.h). Compact parameters are half as long and a product of
// two of their numbers is one instruction: a launch of a few microseconds notices both. Products have 64 bits
// either way.
#pragma once

#include "dtype.h"

namespace kvrope {

KVROPE_HOST_DEVICE int64_t product(int64_t index, int64_t stride) {
  return index * stride;
}

KVROPE_HOST_DEVICE int64_t product(uint32_t index, uint32_t stride) {
  return static_cast<int64_t>(uint64_t{index} * stride);
}

KVROPE_HOST_DEVICE bool fits_in_31_bits(int64_t value) {
  return value >= 0 && value <= 0x7fffffff;
}

// 0 <= value < limit in one comparison.
template <typename Index>
KVROPE_HOST_DEVICE bool is_index(int64_t value, Index limit) {
  return static_cast<uint64_t>(value) < static_cast<uint64_t>(limit);
}

// Division by a number known on the host.
template <typename Index>
struct Divisor;

template <>
struct Divisor<int64_t> {
  int64_t divisor = 1;

  KVROPE_HOST_DEVICE int64_t quotient(int64_t n) const { return n / divisor; }
};

// 31-bit numbers: a multiplication and a shift.
template <>
struct Divisor<uint32_t> {
  uint32_t divisor = 1, multiplier = 0, shift = 0;

  Divisor() = default;
  explicit Divisor(uint32_t d) : divisor(d) {
    while ((uint64_t{1} << shift) < d) ++shift;
    multiplier = static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << shift) - d) / d + 1);
  }

  KVROPE_HOST_DEVICE uint32_t quotient(uint32_t n) const {
#ifdef __CUDA_ARCH__
    return (__umulhi(multiplier, n) + n) >> shift;
#else
    return static_cast<uint32_t>(((uint64_t{multiplier} * n) >> 32) + n) >> shift;
#endif
  }
};

}  // namespace kvrope
