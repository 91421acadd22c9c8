#include "engine_step/decode_graphs.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

namespace kvrope::engine {

struct DecodeGraphs::Graph {
  at::cuda::CUDAGraph graph;
  at::Tensor output;
};

DecodeGraphs::DecodeGraphs() = default;
DecodeGraphs::~DecodeGraphs() = default;

at::Tensor DecodeGraphs::run(int64_t size, const std::function<at::Tensor(int64_t)>& forward) {
  std::unique_ptr<Graph>& entry = graphs_[size];
  if (entry == nullptr) {
    auto captured = std::make_unique<Graph>();
    const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();  // the default stream cannot capture
    c10::cuda::getCurrentCUDAStream().synchronize();
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      forward(size);  // what a first call loads or allocates is no part of the graph
      stream.synchronize();
      captured->graph.capture_begin();
      captured->output = forward(size);
      captured->graph.capture_end();
    }
    entry = std::move(captured);
  }
  entry->graph.replay();
  return entry->output;
}

}  // namespace kvrope::engine
