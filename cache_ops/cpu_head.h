// One head on its way through the CPU kernel:
//
//   T  --norm-->  fp32  --rotate-->  fp32  --convert-->  T for the outputs, the cache's type for the cache
//
// Steps that a head does not need are left out, and elements that no step touches keep their bits. Each step
// is a loop over elements that lie side by side, which compilers turn into vector code.
//
// A part of cpu_rows.cpp, which is compiled more than once.
#pragma once

#ifdef __F16C__
#include <immintrin.h>
#endif

#include <cstring>
#include <type_traits>

#include "quantize.cuh"
#include "rms_norm.cuh"
#include "rope_cache_params.h"
#include "rotate.cuh"

namespace kvrope::KVROPE_CPU_TARGET {
namespace {

constexpr int kMaxHeadSize = 512;
constexpr int kMaxPairs = kMaxHeadSize / 2;
constexpr int kCacheLine = 64;  // bytes: vectors that lie in two lines are slower

// fp32 that is to be rounded to another type, where plain fp32 keeps its bits.
struct Unrounded {
  float value;
};

using kvrope::to_float;
KVROPE_HOST_DEVICE float to_float(Unrounded x) {
  return x.value;
}

// Of one token: cosine and sine of each pair. A full-width table may give its second element others.
struct alignas(kCacheLine) Angles {
  float cos_of_first[kMaxPairs], sin_of_first[kMaxPairs];
  float cos_of_second[kMaxPairs], sin_of_second[kMaxPairs];
};

// The factor of each element of a normed head.
struct alignas(kCacheLine) NormFactors {
  float of[kMaxHeadSize];
};

// The scale of one head, where there is one.
class HeadScale {
 public:
  HeadScale() = default;
  HeadScale(const ScaleArray& scales, int head, bool divide) {
    if (scales.data == nullptr) return;
    is_given_ = true;
    scale_ = Scale(scales.data[head * scales.head_stride], divide);
  }

  bool is_given() const { return is_given_; }
  const Scale& value() const { return scale_; }

 private:
  bool is_given_ = false;
  Scale scale_ = {1.0f, false};
};

// Elements first .. first + num_rotated - 1 are rotated; the others are as they came, at `from`.
template <typename FromT>
struct Head {
  Head(const FromT* from, int size) : from(from), size(size) {}

  const FromT* from;
  int size;
  int first = 0, num_rotated = 0;
  alignas(kCacheLine) Unrounded rotated[kMaxHeadSize];  // num_rotated of them
};

// Each with its neighbour; of an odd number the last is alone. Returns how many sums there are.
inline int add_neighbours(const float* __restrict terms, int count, float* __restrict sums) {
  for (int i = 0; i < count / 2; ++i) sums[i] = terms[2 * i] + terms[2 * i + 1];
  if (count % 2 != 0) sums[count / 2] = terms[count - 1];
  return (count + 1) / 2;
}

template <typename T>
float sum_of_head(const T* x, int size) {
  alignas(kCacheLine) float sums[kMaxPairs], next[kMaxPairs];
  int count = size / 2;
  for (int i = 0; i < count; ++i) sums[i] = sum_of_squares(to_float(x[i]), to_float(x[i + count]));
  while (count > 1) {
    count = add_neighbours(sums, count, next);
    count = add_neighbours(next, count, sums);
  }
  return sums[0];
}

template <typename T>
void norm_head(const RopeCacheParams& p, const T* x, const NormFactors& factors, Unrounded* __restrict to) {
  const float factor = norm_factor(sum_of_head(x, p.head_size), p.inverse_head_size, p.norm_eps);
  for (int d = 0; d < p.head_size; ++d) to[d] = {normed(to_float(x[d]), factor, factors.of[d])};
}

template <bool kIsNeox, typename FromT>
void rotate_pairs(const FromT* __restrict from, int rotary_dim, const Angles& __restrict angles,
                  Unrounded* __restrict to) {
  constexpr RotaryStyle style = {kIsNeox, false};
  for (int pair = 0; pair < rotary_dim / 2; ++pair) {
    const int i = style.first_of_pair(pair), j = style.second_of_pair(pair, rotary_dim);
    const float a = to_float(from[i]), b = to_float(from[j]);
    to[i] = {rotate_first(a, b, angles.cos_of_first[pair], angles.sin_of_first[pair])};
    to[j] = {rotate_second(a, b, angles.cos_of_second[pair], angles.sin_of_second[pair])};
  }
}

template <typename FromT>
void rotate_head(const RopeCacheParams& p, const Angles& angles, Head<FromT>& head) {
  head.first = p.rotary_dim_offset;
  head.num_rotated = p.rotary_dim;
  const FromT* from = head.from + head.first;
  if (p.is_neox) {
    rotate_pairs<true>(from, p.rotary_dim, angles, head.rotated);
  } else {
    rotate_pairs<false>(from, p.rotary_dim, angles, head.rotated);
  }
}

template <typename FromT, typename ToT, typename Scaled>
void convert_each(const FromT* __restrict from, int count, ToT* __restrict to, Scaled scaled) {
  for (int d = 0; d < count; ++d) to[d] = from_float<ToT>(scaled(to_float(from[d])));
}

template <typename FromT, typename ToT>
void convert_unscaled(const FromT* from, int count, ToT* to) {
  convert_each(from, count, to, [](float x) { return x; });
}

#ifdef __F16C__
// By the instruction for it, of which GCC makes no vector code by itself; it keeps sign and payload of a NaN.
inline void convert_unscaled(const Unrounded* from, int count, fp16* to) {
  const __m128i nan = _mm_set1_epi16(0x7fff), infinity = _mm_set1_epi16(0x7c00);
  int d = 0;
  for (; d + 8 <= count; d += 8) {
    const __m128i bits = _mm256_cvtps_ph(_mm256_loadu_ps(&from[d].value), _MM_FROUND_TO_NEAREST_INT);
    const __m128i is_nan = _mm_cmpgt_epi16(_mm_and_si128(bits, nan), infinity);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + d), _mm_blendv_epi8(bits, nan, is_nan));
  }
  for (; d < count; ++d) to[d] = from_float<fp16>(from[d].value);
}
#endif

// Unscaled elements of their own type keep their bits. They may be written where they stand.
template <typename FromT, typename ToT>
void convert(const FromT* from, int count, const HeadScale& scale, ToT* to) {
  if (scale.is_given()) {
    convert_each(from, count, to, [scale = scale.value()](float x) { return scale.apply(x); });
  } else if constexpr (std::is_same_v<FromT, ToT>) {
    std::memmove(to, from, static_cast<size_t>(count) * sizeof(ToT));
  } else {
    convert_unscaled(from, count, to);
  }
}

template <typename FromT, typename ToT>
void convert_head(const Head<FromT>& head, const HeadScale& scale, ToT* to) {
  const int last = head.first + head.num_rotated;
  if (head.num_rotated > 0) convert(head.rotated, head.num_rotated, scale, to + head.first);
  if (head.first > 0) convert(head.from, head.first, scale, to);
  if (last < head.size) convert(head.from + last, head.size - last, scale, to + last);
}

}  // namespace
}  // namespace kvrope::KVROPE_CPU_TARGET
