// Puts other data in the caches of a device.
#pragma once

#include <ATen/core/Tensor.h>

namespace kvrope::regress {

class CacheFlush {
 public:
  explicit CacheFlush(c10::Device device);
  // On CUDA on the current stream.
  void operator()();

 private:
  at::Tensor other_, sum_;
};

}  // namespace kvrope::regress
