// A small call in which every size is another number, for the tests of the C++ API.
#pragma once

#include <ATen/ATen.h>

#include <ostream>
#include <string>
#include <vector>

#include "arguments.h"

namespace kvrope {

enum class CacheKind { flash, split, shuffled };  // shuffled: split keys, values of rank 5

struct CallOptions {
  c10::Device device = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
  std::string cache = "auto";  // "auto", "fp8_e4m3", "fp8_e5m2" as their own types, or "uint8"
  CacheKind kind = CacheKind::flash;
  bool is_neox = true;
  bool is_full_width = false;
};

inline constexpr int64_t kTokens = 5, kKvRows = 7, kQHeads = 6, kKvHeads = 2, kHeadSize = 16,
                         kValueHeadSize = 24;
inline constexpr int64_t kRotaryDim = 8, kRotaryOffset = 3, kNumBlocks = 4, kBlockSize = 24, kX = 8,
                         kPositions = 32;

inline at::Tensor integers(const std::vector<int64_t>& values, const CallOptions& options,
                           at::ScalarType dtype = at::kLong) {
  return at::tensor(values, at::kLong).to(options.device, dtype);
}

inline at::ScalarType cache_dtype(const CallOptions& options) {
  if (options.cache == "auto") return options.dtype;
  if (options.cache == "uint8") return at::kByte;
  return options.cache == "fp8_e5m2" ? at::kFloat8_e5m2 : at::kFloat8_e4m3fn;
}

// A cache of arbitrary bytes: what must stay untouched may be NaN.
inline at::Tensor random_cache(std::vector<int64_t> shape, const CallOptions& options) {
  const at::ScalarType dtype = cache_dtype(options);
  shape.back() *= static_cast<int64_t>(c10::elementSize(dtype));
  return at::randint(0, 256, shape, at::kByte).view(dtype).to(options.device);
}

inline FusedArguments small_call(const CallOptions& options) {
  at::manual_seed(17);
  const auto rows = [&](int64_t count, int64_t heads, int64_t size) {
    return at::randn({count, heads, size}).to(options.device, options.dtype);
  };
  FusedArguments args;
  args.q = rows(kTokens, kQHeads, kHeadSize);
  args.k = rows(kKvRows, kKvHeads, kHeadSize);
  args.v = rows(kKvRows, kKvHeads, kValueHeadSize);
  args.flash_layout = options.kind == CacheKind::flash;
  if (args.flash_layout) {
    args.key_cache = random_cache({kNumBlocks, kBlockSize, kKvHeads, kHeadSize}, options);
    args.value_cache = random_cache({kNumBlocks, kBlockSize, kKvHeads, kValueHeadSize}, options);
  } else {
    args.key_cache = random_cache({kNumBlocks, kKvHeads, kHeadSize / kX, kBlockSize, kX}, options);
    args.value_cache =
        options.kind == CacheKind::split
            ? random_cache({kNumBlocks, kKvHeads, kValueHeadSize, kBlockSize}, options)
            : random_cache({kNumBlocks, kKvHeads, kBlockSize / kX, kValueHeadSize, kX}, options);
  }
  args.slot_mapping = integers({9, -1, 95, 23, 30, 71}, options);  // row 5 is KV-only, row 6 is not cached
  args.pos = integers({0, 31, 7, 7, 12}, options, at::kInt);
  const at::Tensor angles = at::randn({kPositions, options.is_full_width ? kRotaryDim : kRotaryDim / 2}) * 3;
  args.cos_sin = at::cat({angles.cos(), angles.sin()}, 1).to(options.device);
  args.rotary_dim = kRotaryDim;
  args.rotary_dim_offset = kRotaryOffset;
  args.is_neox = options.is_neox;
  if (options.cache != "auto") {  // keeps all values below the largest of fp8
    args.k_scale = at::tensor({0.11f, 0.07f}).to(options.device);
    args.v_scale = at::scalar_tensor(0.3, at::kFloat).to(options.device);
  }
  if (options.cache == "uint8") args.kv_cache_dtype = "fp8";
  return args;
}

// The elements as integers of their size: comparing these compares bits, NaN included. A view.
inline at::Tensor bits_view(const at::Tensor& tensor) {
  const auto size = tensor.element_size();
  return tensor.view(size == 8 ? at::kLong : size == 4 ? at::kInt : size == 2 ? at::kShort : at::kByte);
}

inline bool is_same_bits(const at::Tensor& a, const at::Tensor& b) {
  return at::equal(bits_view(a).reshape(b.sizes()), bits_view(b));
}

inline std::string name_of(CacheKind kind) {
  return kind == CacheKind::flash ? "flash" : kind == CacheKind::split ? "split" : "shuffled";
}

inline std::string name_of(const CallOptions& options) {
  return std::string(options.device.is_cuda() ? "cuda" : "cpu") + '_' + c10::toString(options.dtype) + '_' +
         options.cache + '_' + name_of(options.kind) + (options.is_neox ? "_neox" : "_gptj") +
         (options.is_full_width ? "_full" : "_half");
}

inline std::ostream& operator<<(std::ostream& out, const CallOptions& options) {
  return out << name_of(options);
}

inline std::vector<c10::Device> test_devices() {
  return {c10::Device(at::kCPU), c10::Device(at::kCUDA, 0)};
}

}  // namespace kvrope

#define KVROPE_SKIP_WITHOUT(device_of_test) \
  if ((device_of_test).is_cuda() && !at::hasCUDA()) GTEST_SKIP() << "no CUDA device"
