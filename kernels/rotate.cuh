// The arithmetic of one pair, which the CPU kernel, every vector width and both styles go through; and for
// the CPU kernel, element by element, which two elements make a pair and which table columns hold their
// angle. Device code says that of whole slices (slice_dims.cuh, rotate_slice.cuh).
#pragma once

#include <cmath>

#include "dtype.h"

namespace kvrope {

// a' = a cos - b sin, b' = b cos + a sin in fp32, each one rounded product inside one fused multiply-add: the
// order of roundings is part of the contract, so that all code paths agree to the bit. An element's own
// cosine and sine are passed since a full-width table may give the two elements of a pair different ones.
KVROPE_HOST_DEVICE float rotate_first(float a, float b, float cos, float sin) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, cos, -__fmul_rn(b, sin));
#else
  return std::fma(a, cos, -(b * sin));
#endif
}

KVROPE_HOST_DEVICE float rotate_second(float a, float b, float cos, float sin) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(b, cos, __fmul_rn(a, sin));
#else
  return std::fma(b, cos, a * sin);
#endif
}

// How the R = rotary_dim rotated elements form pairs and find their angles in a table row.
struct RotaryStyle {
  bool is_neox;        // pairs (i, i + R/2); otherwise GPT-J: (2i, 2i + 1)
  bool is_full_width;  // the row holds R cosines then R sines; otherwise R/2 then R/2

  KVROPE_HOST_DEVICE int first_of_pair(int pair) const { return is_neox ? pair : 2 * pair; }
  KVROPE_HOST_DEVICE int second_of_pair(int pair, int rotary_dim) const {
    return is_neox ? pair + rotary_dim / 2 : 2 * pair + 1;
  }

  KVROPE_HOST_DEVICE int pair_of(int j, int rotary_dim) const {
    if (!is_neox) return j / 2;
    return j < rotary_dim / 2 ? j : j - rotary_dim / 2;
  }

  // The column of rotated element j's cosine; its sine stands sine_offset columns further.
  KVROPE_HOST_DEVICE int cosine_column(int j, int rotary_dim) const {
    return is_full_width ? j : pair_of(j, rotary_dim);
  }
  KVROPE_HOST_DEVICE int sine_offset(int rotary_dim) const {
    return is_full_width ? rotary_dim : rotary_dim / 2;
  }
};

}  // namespace kvrope
