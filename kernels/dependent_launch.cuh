// Programmatic dependent launch: a kernel may start while earlier ones still run, and what it does before it
// waits for them is hidden behind them.
#pragma once

#include <cstdint>

namespace kvrope {

__device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// Nothing that an earlier kernel wrote may be read before this returns.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

// Addresses and parameters that are in registers before the wait. Left alone, the compiler waits first, then
// reads parameters, which takes long the first time, and works out addresses next to where they are used.
// Here a thread exits before the wait if all bits of all of them are ones, so that it needs them. It never
// does: the address of an element of two bytes or more ends in a zero.
class WorkBeforeWait {
 public:
  template <typename T>
  __device__ __forceinline__ WorkBeforeWait(bool is_worth_it, const T* element) : is_worth_it_(is_worth_it) {
    static_assert(sizeof(T) > 1, "its address must end in a zero");
    add(element);
  }

  __device__ __forceinline__ void add(const void* address) { add(reinterpret_cast<uint64_t>(address)); }
  __device__ __forceinline__ void add(int64_t number) { add(static_cast<uint64_t>(number)); }
  __device__ __forceinline__ void add(int number) { add(static_cast<uint32_t>(number)); }
  __device__ __forceinline__ void add(uint64_t bits) {
    add(static_cast<uint32_t>(bits));
    add(static_cast<uint32_t>(bits >> 32));
  }
  __device__ __forceinline__ void add(uint32_t bits) { ones_ &= bits; }

  __device__ __forceinline__ void wait_for_earlier_kernels() const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (is_worth_it_) {
      asm volatile(
          "{\n\t"
          ".reg .pred are_ones;\n\t"
          "setp.eq.u32 are_ones, %0, 0xffffffff;\n\t"
          "@are_ones exit;\n\t"
          "}" ::"r"(ones_));
    }
#endif
    kvrope::wait_for_earlier_kernels();
  }

 private:
  bool is_worth_it_;
  uint32_t ones_ = 0xffffffffu;  // the bitwise and of all
};

}  // namespace kvrope
