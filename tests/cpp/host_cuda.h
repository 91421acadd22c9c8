// What device code needs to compile and run on the host, one thread after the other: the built-in variables
// as plain ones, a warp of one lane. Include before a header from kernels/.
#pragma once

#include <bit>
#include <cstdint>

#if __has_include(<vector_types.h>)
#include <vector_types.h>
#else
struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
#endif

struct Index3 {
  unsigned x, y;
};
inline thread_local Index3 gridDim, blockDim, blockIdx, threadIdx;

#ifndef __device__
#define __device__
#endif
#ifndef __global__
#define __global__
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#ifndef __noinline__
#define __noinline__
#endif
#ifndef __forceinline__
#define __forceinline__ inline
#endif

inline unsigned __activemask() {
  return 1u << ((threadIdx.y * blockDim.x + threadIdx.x) % 32);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline bool __all_sync(unsigned, bool predicate) {
  return predicate;
}

inline int32_t atomicCAS(int32_t* at, int32_t expected, int32_t desired) {
  const int32_t old = *at;
  if (old == expected) *at = desired;
  return old;
}

template <typename Word>
Word __ldcs(const Word* from) {
  return *from;
}

template <typename Word>
void __stcs(Word* to, Word word) {
  *to = word;
}
