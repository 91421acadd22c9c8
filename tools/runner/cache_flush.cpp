#include "runner/cache_flush.h"

#include <ATen/Functions.h>

namespace kvrope::regress {

constexpr int64_t kFlushBytes = 256 << 20;  // several times the largest L2

CacheFlush::CacheFlush(c10::Device device)
    : other_(at::zeros({kFlushBytes / 4}, at::TensorOptions(at::kFloat).device(device))),
      sum_(at::empty({}, other_.options())) {}

// Reads: lines that had been written would still have to leave the cache when the timed calls need room.
void CacheFlush::operator()() {
  constexpr int64_t kDim = 0;
  at::sum_out(sum_, other_, at::IntArrayRef(kDim));
}

}  // namespace kvrope::regress
