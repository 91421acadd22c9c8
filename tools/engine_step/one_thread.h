// The tensors of a step are so small that threads would only wait for each other.
#pragma once

#include <ATen/Parallel.h>

namespace kvrope::engine {

// LibTorch computes on one thread while this lives.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

}  // namespace kvrope::engine
