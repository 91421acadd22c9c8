// RMSNorm of one head, the arithmetic that the CPU kernel and the GPU kernel go through:
//
//   x[d] / sqrt(mean(x^2) + eps) * weight[d]
//
// in fp32, in one order of roundings for all vector widths and devices. The squares are summed like this:
// those of x[i] and x[i + D/2] first, for each i < D/2, then neighbours, neighbours of these and so on, as if
// there were zeros up to a power of two.
#pragma once

#include <cmath>

#include "dtype.h"

namespace kvrope {

KVROPE_HOST_DEVICE float sum_of_squares(float lo, float hi) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(hi, hi, __fmul_rn(lo, lo));
#else
  return std::fma(hi, hi, lo * lo);
#endif
}

// 1 / sqrt(sum / D + eps), given 1 / D; the reciprocal root is rounded once, to nearest. On the host the way
// through double gives the same bits (rms_norm_test.cpp).
KVROPE_HOST_DEVICE float norm_factor(float sum, float inverse_head_size, float eps) {
#ifdef __CUDA_ARCH__
  return __frsqrt_rn(__fmaf_rn(sum, inverse_head_size, eps));
#else
  return static_cast<float>(1.0 / std::sqrt(double{std::fma(sum, inverse_head_size, eps)}));
#endif
}

KVROPE_HOST_DEVICE float norm_weight(float weight, bool plus_one) {
  return plus_one ? 1.0f + weight : weight;
}

KVROPE_HOST_DEVICE float normed(float x, float factor, float weight) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(__fmul_rn(x, factor), weight);
#else
  return x * factor * weight;
#endif
}

}  // namespace kvrope
