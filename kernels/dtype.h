// Element types of the operation, as plain storage, and the run-time names of them.
// No CUDA header and no torch header: the CPU kernel and the device code share this file.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KVROPE_HOST_DEVICE __host__ __device__ __forceinline__
#else
// Always inlined: the CPU kernel is compiled for more than one processor, and the linker must not mix the
// copies.
#define KVROPE_HOST_DEVICE inline __attribute__((always_inline))
#endif

namespace kvrope {

struct fp16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct fp8_e4m3 {  // torch.float8_e4m3fn: no infinities, largest finite value 448
  uint8_t bits;
};
struct fp8_e5m2 {  // largest finite value 57344
  uint8_t bits;
};

enum class DType : uint8_t { fp32, fp16, bf16, fp8_e4m3, fp8_e5m2 };

KVROPE_HOST_DEVICE constexpr int size_of(DType dtype) {
  return dtype == DType::fp32 ? 4 : dtype == DType::fp16 || dtype == DType::bf16 ? 2 : 1;
}

KVROPE_HOST_DEVICE constexpr bool is_fp8(DType dtype) {
  return dtype == DType::fp8_e4m3 || dtype == DType::fp8_e5m2;
}

}  // namespace kvrope
