// What device code needs to compile and run on the host, one thread after the other: the built-in variables
// as plain ones, barriers. Include before a header from kernels/.
#pragma once

#include <gtest/gtest.h>

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

// Barriers. A thread that comes to one for the first time is left there, and is run again from its start when
// all others have come or returned: what stands before a barrier must give the same when it is done twice.
class HostBlock {
 public:
  void run(const std::function<void()>& kernel) {
    std::vector<bool> has_returned(blockDim.x * blockDim.y * blockDim.z, false);
    bool all_returned = false;
    votes_.clear();
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

  // Whether any thread that came to the barrier did so with a vote.
  bool wait(bool vote) {
    const size_t barrier = static_cast<size_t>(num_passed_++);
    if (votes_.size() <= barrier) votes_.push_back(false);
    if (vote) votes_[barrier] = true;
    if (num_passed_ > num_open_) throw IsWaiting();
    return votes_[barrier];
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
  std::vector<bool> votes_;
};
inline thread_local HostBlock host_block;

inline void __syncthreads() {
  host_block.wait(false);
}
inline int __syncthreads_or(int vote) {
  return host_block.wait(vote != 0);
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
