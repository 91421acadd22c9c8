// What device code needs to compile and run on the host, one thread after the other: the built-in variables
// as plain ones, a warp of one lane, barriers. Include before a header from kernels/.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <vector>

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

inline unsigned __activemask() {
  return 1u << (((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x) % 32);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline bool __any_sync(unsigned, bool predicate) {
  return predicate;
}

// Barriers. A thread that comes to one for the first time is left there, and is run again from its start when
// all others have come or returned: what stands before a barrier must give the same when it is done twice.
class HostBlock {
 public:
  void run(const std::function<void()>& kernel) {
    std::vector<bool> has_returned(blockDim.x * blockDim.y * blockDim.z, false);
    bool all_returned = false;
    for (num_open_ = 0; !all_returned; ++num_open_) {
      all_returned = true;
      size_t thread = 0;
      for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z) {
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
          for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x, ++thread) {
            if (!has_returned[thread]) has_returned[thread] = returns(kernel);
            all_returned = all_returned && has_returned[thread];
          }
        }
      }
    }
  }

  void wait() {
    if (num_passed_++ == num_open_) throw IsWaiting();
  }

 private:
  struct IsWaiting {};

  bool returns(const std::function<void()>& kernel) {
    num_passed_ = 0;
    try {
      kernel();
      return true;
    } catch (const IsWaiting&) {
      return false;
    }
  }

  int num_open_ = 0;    // barriers that all threads have come to
  int num_passed_ = 0;  // of the thread that runs
};
inline thread_local HostBlock host_block;

inline void __syncthreads() {
  host_block.wait();
}
inline void* dynamic_shared_memory() {
  alignas(16) static thread_local char memory[48 * 1024];
  return memory;
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
