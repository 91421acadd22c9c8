// Where the order of instructions is not left to the compiler. A launch of few rows consists of waits, and
// the compiler takes loads for fast: it puts what waits for one of them before the next are asked for.
#pragma once

#include <cstdint>
#include <type_traits>

namespace kvrope {

// Has x in a register from here on, where the compiler would work it out next to its use.
template <typename T>
__device__ __forceinline__ void work_out_now([[maybe_unused]] T& x) {
  static_assert(sizeof(T) == 4);
#ifdef __CUDA_ARCH__
  if constexpr (std::is_floating_point_v<T>) {
    asm volatile("" : "+f"(x));
  } else {
    asm volatile("" : "+r"(x));
  }
#endif
}

// Starts to load a word, or takes another where it is not wanted. The compiler does not look into this: from
// a condition in C++ it makes one on the loaded word, which waits for it.
__device__ __forceinline__ uint32_t load_word_if(bool is_wanted, const void* from, uint32_t otherwise) {
#ifdef __CUDA_ARCH__
  uint32_t word;
  asm volatile(
      "{\n\t"
      ".reg .pred is_wanted;\n\t"
      "setp.ne.u32 is_wanted, %2, 0;\n\t"
      "mov.u32 %0, %3;\n\t"
      "@is_wanted ld.global.u32 %0, [%1];\n\t"
      "}"
      : "=&r"(word)
      : "l"(from), "r"(uint32_t{is_wanted}), "r"(otherwise));
  return word;
#else
  return is_wanted ? *static_cast<const uint32_t*>(from) : otherwise;
#endif
}

}  // namespace kvrope
