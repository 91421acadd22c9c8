// What device code needs to compile and run on the host: the built-in variables as plain ones, barriers and
// exchanges between lanes (host_block.h). Include before a header from kernels/.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#if __has_include(<vector_types.h>)
#include <vector_types.h>
#else
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
#endif

struct Index3 {
  unsigned x, y, z;
};
inline thread_local Index3 gridDim, blockDim, blockIdx, threadIdx;

#include "host_block.h"

#ifndef __device__
#define __device__
#endif
#ifndef __global__
#define __global__
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#undef __shared__  // of CUDA's host headers, which makes it a variable of each call
#define __shared__ static thread_local
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __noinline__
#define __noinline__
#endif
#ifndef __forceinline__
#define __forceinline__ inline
#endif

inline void __syncthreads() {
  host_block.wait_for_block(false);
}
inline int __syncthreads_or(int vote) {
  return host_block.wait_for_block(vote != 0);
}
inline int __any_sync(unsigned lanes, int vote) {
  EXPECT_EQ(lanes, 0xffffffffu);
  return host_block.wait_for_warp(vote != 0);
}
inline float __shfl_xor_sync(unsigned lanes, float value, int distance) {
  EXPECT_EQ(lanes, 0xffffffffu);
  return host_block.exchange(value, distance);
}
inline void* dynamic_shared_memory() {
  alignas(16) static thread_local char memory[48 * 1024];
  return memory;
}

inline void __threadfence() {}

inline int32_t atomicCAS(int32_t* at, int32_t expected, int32_t desired) {
  const int32_t old = *at;
  if (old == expected) *at = desired;
  return old;
}

// The device refuses what is not aligned.
template <typename Word>
Word __ldcs(const Word* from) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % sizeof(Word), 0) << "load";
  return *from;
}

template <typename Word>
void __stcs(Word* to, Word word) {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(to) % sizeof(Word), 0) << "store";
  *to = word;
}
