// N neighbouring elements as one register vector: one load, one store, packed conversions. At most 16 bytes.
#pragma once

#include <type_traits>

#include "quantize.cuh"

namespace kvrope {

// Elements are kept packed in words, as registers hold them.
template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  static constexpr int kBytes = sizeof(T) * N;
  static_assert(kBytes <= 16, "the widest access is 16 bytes");
  using Word =
      std::conditional_t<(kBytes >= 4), uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;
  static constexpr int kWords = kBytes / static_cast<int>(sizeof(Word));
  static constexpr int kPerWord = N / kWords;
  Word words[kWords];

  KVROPE_HOST_DEVICE T at(int i) const {
    const Word word = words[i / kPerWord];
    if constexpr (sizeof(T) == 4) {
      return float_of(word);
    } else {
      return {static_cast<decltype(T::bits)>(word >> (8 * sizeof(T) * (i % kPerWord)))};
    }
  }

  // Each element once, in order.
  KVROPE_HOST_DEVICE void set(int i, T value) {
    if constexpr (sizeof(T) == 4) {
      words[i] = bits_of(value);
    } else {
      const Word word = static_cast<Word>(Word{value.bits} << (8 * sizeof(T) * (i % kPerWord)));
      words[i / kPerWord] = i % kPerWord == 0 ? word : words[i / kPerWord] | word;
    }
  }
};

// As many of N neighbouring elements as one access moves.
template <typename T, int N>
constexpr int kPerAccess = N * sizeof(T) <= 16 ? N : 16 / static_cast<int>(sizeof(T));

// What one access moves.
template <int kBytes>
struct AccessOf;
template <>
struct AccessOf<1> {
  using type = unsigned char;
};
template <>
struct AccessOf<2> {
  using type = unsigned short;
};
template <>
struct AccessOf<4> {
  using type = unsigned int;
};
template <>
struct AccessOf<8> {
  using type = uint2;
};
template <>
struct AccessOf<16> {
  using type = uint4;
};

template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}

// Rows are read once and written once: streaming accesses leave the cache to the table.
template <int N, typename T>
__device__ __forceinline__ Vec<T, N> load_vec_once(const T* from) {
  using Access = typename AccessOf<sizeof(T) * N>::type;
  const Access access = __ldcs(reinterpret_cast<const Access*>(from));
  return *reinterpret_cast<const Vec<T, N>*>(&access);
}

template <typename T, int N>
__device__ __forceinline__ void store_vec_once(T* to, const Vec<T, N>& x) {
  using Access = typename AccessOf<sizeof(T) * N>::type;
  __stcs(reinterpret_cast<Access*>(to), *reinterpret_cast<const Access*>(&x));
}

template <typename T, int N>
__device__ __forceinline__ void widen(const Vec<T, N>& x, float (&values)[N]) {
#pragma unroll
  for (int j = 0; j < N; ++j) values[j] = to_float(x.at(j));
}

// Two values in one instruction where the device has it.
template <typename T>
__device__ __forceinline__ uint32_t narrow_pair(float a, float b) {
  return static_cast<uint32_t>(from_float<T>(a).bits) | static_cast<uint32_t>(from_float<T>(b).bits)
                                                            << (8 * sizeof(T));
}

#ifdef __CUDACC__
template <>
__device__ __forceinline__ uint32_t narrow_pair<fp16>(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <>
__device__ __forceinline__ uint32_t narrow_pair<bf16>(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
#endif

#ifdef KVROPE_HAS_FP8_INSTRUCTIONS
template <>
__device__ __forceinline__ uint32_t narrow_pair<fp8_e4m3>(float a, float b) {
  return __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E4M3);
}

template <>
__device__ __forceinline__ uint32_t narrow_pair<fp8_e5m2>(float a, float b) {
  return __nv_cvt_float2_to_fp8x2({a, b}, __NV_SATFINITE, __NV_E5M2);
}
#endif

template <typename T, int N>
__device__ __forceinline__ Vec<T, N> narrow(const float (&values)[N]) {
  using Word = typename Vec<T, N>::Word;
  constexpr int kPerWord = Vec<T, N>::kPerWord;
  Vec<T, N> x;
#pragma unroll
  for (int i = 0; i < Vec<T, N>::kWords; ++i) {
    const float* from = values + i * kPerWord;
    if constexpr (sizeof(T) == 4) {
      x.words[i] = bits_of(from_float<T>(from[0]));
    } else if constexpr (kPerWord == 1) {
      x.words[i] = from_float<T>(from[0]).bits;
    } else if constexpr (kPerWord == 2) {
      x.words[i] = static_cast<Word>(narrow_pair<T>(from[0], from[1]));
    } else {
      x.words[i] = narrow_pair<T>(from[0], from[1]) | narrow_pair<T>(from[2], from[3]) << 16;
    }
  }
  return x;
}

}  // namespace kvrope
