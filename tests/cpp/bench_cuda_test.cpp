// Calls timed on a GPU: graphs without programmatic dependencies, and times that follow the work.
#include <ATen/Context.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <gtest/gtest.h>

#include <vector>

#include "arguments.h"
#include "floors.h"
#include "make_params.h"
#include "rope_cache.h"
#include "runner/bench_statistics.h"
#include "runner/call_buffers.h"
#include "runner/case_file.h"
#include "runner/timed_calls.h"

namespace kvrope::regress {
namespace {

const c10::Device kGpu(c10::kCUDA, 0);

class BenchCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device";
  }
};

FusedArguments arguments_of(int64_t tokens) {
  std::string text =
      R"({"schema_version": 1, "cases": [{"id": "a", "q_heads": 32, "kv_heads": 8, "head_dim": 128,
                         "inputs": {"values": "ramp"}, "num_tokens": )" +
      std::to_string(tokens) + "}]}";
  CaseSpec spec = parse_case_file(text, "test.json").at(0);
  return CallBuffers(spec, make_call_data(spec), kGpu).arguments();
}

size_t programmatic_edges(cudaGraph_t graph) {
  size_t count = 0;
  std::vector<cudaGraphNode_t> from(100), to(100);
  std::vector<cudaGraphEdgeData> data(100);
  count = data.size();
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count), cudaSuccess);
#else
  EXPECT_EQ(cudaGraphGetEdges_v2(graph, from.data(), to.data(), data.data(), &count), cudaSuccess);
#endif
  size_t programmatic = 0;
  for (size_t i = 0; i < count; ++i) programmatic += data[i].type == cudaGraphDependencyTypeProgrammatic;
  return programmatic;
}

size_t edges_of(cudaGraph_t graph) {
  size_t count = 0;
#if CUDART_VERSION >= 13000
  EXPECT_EQ(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count), cudaSuccess);
#else
  EXPECT_EQ(cudaGraphGetEdges_v2(graph, nullptr, nullptr, nullptr, &count), cudaSuccess);
#endif
  return count;
}

TEST_F(BenchCuda, NoProgrammaticDependencyIsLeft) {
  FusedArguments arguments = arguments_of(1);
  c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool(false, 0);
  c10::cuda::CUDAStreamGuard guard(stream);
  fused_qk_rope_reshape_and_cache(arguments);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 5; ++i) fused_qk_rope_reshape_and_cache(arguments);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  size_t edges = edges_of(graph);
  if (programmatic_edges(graph) == 0) {
    cudaGraphDestroy(graph);
    GTEST_SKIP() << "this GPU, or KVROPE_PDL, has no programmatic dependent launch";
  }
  EXPECT_EQ(kvrope_graph_without_pdl(graph), cudaSuccess);
  EXPECT_EQ(programmatic_edges(graph), 0u);
  EXPECT_EQ(edges_of(graph), edges);  // the launches still follow each other
  cudaGraphDestroy(graph);
}

double median_time(const CallTiming& timing, const FusedArguments& arguments) {
  auto calls = prepare_calls(kGpu, timing, [&](int64_t) { fused_qk_rope_reshape_and_cache(arguments); });
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) times.push_back(calls->microseconds());
  return median(times);
}

TEST_F(BenchCuda, PlantedCallsTakeTime) {
  FusedArguments arguments = arguments_of(4096);
  CallTiming timing;
  timing.group = {1, 20};
  double plain = median_time(timing, arguments);
  timing.planted_slowdown = 0.5;
  double planted = median_time(timing, arguments);
  EXPECT_GT(plain, 5);
  EXPECT_LT(plain, 1000);
  EXPECT_NEAR(planted / plain, 1.5, 0.15);
}

TEST_F(BenchCuda, AFlushedCacheTakesLonger) {
  FusedArguments arguments = arguments_of(1);
  CallTiming timing;
  timing.group = {1, 1};
  double warm = median_time(timing, arguments);
  timing.l2 = L2State::flushed;
  EXPECT_GT(median_time(timing, arguments), warm);
}

TEST_F(BenchCuda, ACallThatRaisesLeavesTheStreamUsable) {
  CallTiming timing;
  timing.group = {1, 3};
  FusedArguments arguments = arguments_of(2);
  auto raises_in_capture = [&](int64_t i) {
    if (i == 2) throw std::runtime_error("no");
    fused_qk_rope_reshape_and_cache(arguments);
  };
  EXPECT_THROW(prepare_calls(kGpu, timing, raises_in_capture), std::runtime_error);
  EXPECT_GT(median_time(timing, arguments), 0);
}

// Launches with a record and without one, in turn. Valid rows never come to the code that records.
TEST_F(BenchCuda, TheFaultRecordCostsNothing) {
  const at::Tensor memory = at::zeros({sizeof(FaultRecord)}, at::TensorOptions(at::kByte).device(kGpu));
  for (int64_t tokens : {1, 64, 4096}) {
    FusedArguments arguments = arguments_of(tokens);
    arguments.q_out = at::empty_like(arguments.q);
    arguments.k_out = at::empty_like(arguments.k);
    const auto prepared = [&](FaultRecord* record) {
      RopeCacheParams params = make_params(arguments);
      params.fault_record = record;
      CallTiming timing;
      timing.group = {1, 100};
      return prepare_calls(kGpu, timing, [params](int64_t) {
        ASSERT_EQ(launch_rope_cache(params, c10::cuda::getCurrentCUDAStream(), true), cudaSuccess);
      });
    };
    const auto with = prepared(static_cast<FaultRecord*>(memory.data_ptr())), without = prepared(nullptr);
    std::vector<double> times_with, times_without;
    for (int i = 0; i < 25; ++i) {
      times_with.push_back(with->microseconds());
      times_without.push_back(without->microseconds());
    }
    EXPECT_LT(median(times_with), 1.03 * median(times_without)) << tokens << " tokens";
  }
  EXPECT_FALSE(memory.any().item<bool>());
}

}  // namespace
}  // namespace kvrope::regress
