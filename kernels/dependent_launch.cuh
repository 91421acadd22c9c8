// Programmatic dependent launch: a kernel may start while earlier ones still run. What does not read device
// memory (addresses, the launch's parameters) is done before the wait.
#pragma once

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

}  // namespace kvrope
