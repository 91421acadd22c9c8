#include "runner/timed_calls.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "runner/cache_flush.h"
#include "runner/host_memory.h"
#ifdef KVROPE_WITH_CUDA
#include "runner/cuda_calls.h"
#endif

namespace kvrope::regress {
namespace {

double now_in_microseconds() {
  using Microseconds = std::chrono::duration<double, std::micro>;
  return Microseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class CpuCalls : public TimedCalls {
 public:
  CpuCalls(const CallTiming& timing, const Call& call) : timing_(timing), call_(call) {
    if (timing.l2 == L2State::flushed) flush_.emplace(c10::kCPU);
    call_(0);
    double one = run(1);
    constexpr double kEnough = 2000;
    auto wanted = static_cast<int64_t>(std::ceil(kEnough / std::max(one, 1.0)));
    calls_ = std::clamp<int64_t>(wanted, timing.planted_slowdown > 0 ? 10 : 1, timing.group.calls);
  }

  double microseconds() override {
    if (flush_) {
      (*flush_)();
    } else if (timing_.group.sets == 1) {
      call_(0);
    }
    auto extra = std::llround(timing_.planted_slowdown * static_cast<double>(calls_));
    return run(calls_ + extra) / static_cast<double>(calls_);
  }

 private:
  double run(int64_t calls) {
    double start = now_in_microseconds();
    for (int64_t i = 0; i < calls; ++i) call_(next_++ % timing_.group.calls);
    return now_in_microseconds() - start;
  }

  CallTiming timing_;
  Call call_;
  std::optional<CacheFlush> flush_;
  int64_t calls_ = 1, next_ = 0;
};

}  // namespace

std::unique_ptr<TimedCalls> prepare_calls([[maybe_unused]] c10::Device device, const CallTiming& timing,
                                          const Call& call) {
#ifdef KVROPE_WITH_CUDA
  if (device.is_cuda()) return prepare_cuda_calls(device, timing, call);
#endif
  return std::make_unique<CpuCalls>(timing, call);
}

double host_microseconds([[maybe_unused]] c10::Device device, const Call& call) {
  constexpr int kBatches = 15;
  constexpr int kCalls = 200;  // fewer than a stream queues
  std::vector<double> batches;
  for (int batch = 0; batch < kBatches; ++batch) {
    double start = now_in_microseconds();
    for (int i = 0; i < kCalls; ++i) call(0);
    batches.push_back((now_in_microseconds() - start) / kCalls);
#ifdef KVROPE_WITH_CUDA
    if (device.is_cuda()) wait_for_cuda(device);
#endif
  }
  std::nth_element(batches.begin(), batches.begin() + kBatches / 2, batches.end());
  return batches[kBatches / 2];
}

int64_t spare_memory([[maybe_unused]] c10::Device device) {
#ifdef KVROPE_WITH_CUDA
  if (device.is_cuda()) return free_cuda_memory(device) / 2;
#endif
  return static_cast<int64_t>(std::min(available_host_memory() / 4, 16e9));
}

}  // namespace kvrope::regress
