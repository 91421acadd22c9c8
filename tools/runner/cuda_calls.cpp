#include "runner/cuda_calls.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime.h>

#include <cmath>
#include <optional>

#include "floors.h"
#include "runner/cache_flush.h"

namespace kvrope::regress {
namespace {

void check_cuda(int error) {
  C10_CUDA_CHECK(static_cast<cudaError_t>(error));
}

class Event {
 public:
  Event() { C10_CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { C10_CUDA_CHECK_WARN(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { C10_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait() { C10_CUDA_CHECK(cudaEventSynchronize(event_)); }
  double microseconds_until(const Event& end) const {
    float milliseconds = 0;
    C10_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, event_, end.event_));
    return 1000.0 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class CudaCalls : public TimedCalls {
 public:
  CudaCalls(c10::Device device, const CallTiming& timing, const Call& call)
      : stream_(c10::cuda::getStreamFromPool(false, device.index())), timing_(timing), call_(call) {
    wait_for_cuda(device);  // what has been enqueued elsewhere
    c10::cuda::CUDAStreamGuard guard(stream_);
    if (timing.l2 == L2State::flushed) flush_.emplace(device);
    call_(0);  // what a first call loads or allocates is no part of the graph
    C10_CUDA_CHECK(cudaStreamSynchronize(stream_));
    capture();
  }

  ~CudaCalls() override {
    if (graph_) C10_CUDA_CHECK_WARN(cudaGraphExecDestroy(graph_));
  }

  double microseconds() override {
    c10::cuda::CUDAStreamGuard guard(stream_);
    // What goes before leaves the caches as the state has them. It also runs while the host enqueues the
    // rest: the time between the events is the GPU's alone.
    if (flush_) {
      (*flush_)();
    } else {
      C10_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    }
    start_.record(stream_);
    C10_CUDA_CHECK(cudaGraphLaunch(graph_, stream_));
    end_.record(stream_);
    end_.wait();
    return start_.microseconds_until(end_) / static_cast<double>(timing_.group.calls);
  }

 private:
  void capture() {
    auto calls = static_cast<double>(timing_.group.calls);
    int64_t captured = timing_.group.calls + std::llround(timing_.planted_slowdown * calls);
    cudaGraph_t graph = nullptr;
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    try {
      for (int64_t i = 0; i < captured; ++i) call_(i % timing_.group.calls);
    } catch (...) {
      C10_CUDA_CHECK_WARN(cudaStreamEndCapture(stream_, &graph));
      if (graph) C10_CUDA_CHECK_WARN(cudaGraphDestroy(graph));
      throw;
    }
    C10_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
    if (timing_.without_pdl) check_cuda(kvrope_graph_without_pdl(graph));
    C10_CUDA_CHECK(cudaGraphInstantiate(&graph_, graph, 0));
    C10_CUDA_CHECK(cudaGraphDestroy(graph));
    C10_CUDA_CHECK(cudaGraphUpload(graph_, stream_));
    C10_CUDA_CHECK(cudaStreamSynchronize(stream_));
  }

  c10::cuda::CUDAStream stream_;
  CallTiming timing_;
  Call call_;  // holds the memory that the graph's launches use
  std::optional<CacheFlush> flush_;
  cudaGraphExec_t graph_ = nullptr;
  Event start_, end_;
};

}  // namespace

std::unique_ptr<TimedCalls> prepare_cuda_calls(c10::Device device, const CallTiming& timing,
                                               const Call& call) {
  c10::cuda::CUDAGuard guard(device);
  return std::make_unique<CudaCalls>(device, timing, call);
}

void wait_for_cuda(c10::Device device) {
  c10::cuda::CUDAGuard guard(device);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
}

int64_t free_cuda_memory(c10::Device device) {
  c10::cuda::CUDAGuard guard(device);
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

}  // namespace kvrope::regress
