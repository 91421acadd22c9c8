#include "engine_step/engine.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine_step/audit.h"
#include "fault.h"
#ifdef KVROPE_WITH_CUDA
#include "engine_step/decode_graphs.h"
#endif

namespace kvrope::engine {

#ifndef KVROPE_WITH_CUDA
class DecodeGraphs {};
#endif

namespace {

constexpr size_t kMostComplaints = 20;

// NaN is as far as can be.
double largest_difference(const float* got, const float* want, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double difference = std::abs(static_cast<double>(got[i]) - want[i]);
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
    largest = std::max(largest, difference);
  }
  return largest;
}

}  // namespace

Engine::Engine(const SchedulerConfig& scheduler, const ModelConfig& model, int64_t seed, c10::Device device)
    : scheduler_(scheduler),
      model_(make_model(model, scheduler, seed, device)),
      reference_(model_),
      inputs_(scheduler, device) {
#ifdef KVROPE_WITH_CUDA
  if (device.is_cuda()) graphs_ = std::make_unique<DecodeGraphs>();
#endif
}

Engine::~Engine() = default;

void Engine::submit(const RequestPtr& request) {
  request->expected = reference_.outputs(request->tokens);
  scheduler_.submit(request);
}

void Engine::audit() {
  complain(audit_blocks(scheduler_));
}

bool Engine::step() {
  StepRows rows = make_rows(scheduler_.schedule(), scheduler_);
  audit();
  complain(audit_writes(rows, scheduler_));
  ++scheduler_.statistics().steps;
  if (rows.chunks.empty()) {
    if (!scheduler_.is_idle()) complain({"requests wait, none runs, and no blocks are free for the first"});
    return false;
  }
  if (tamper) tamper(rows);
  const at::Tensor outputs = run(rows);
  compare(rows, outputs);
  count(rows);
  std::erase_if(rows.chunks, [](const Chunk& chunk) { return chunk.request == nullptr; });
  scheduler_.commit(rows.chunks);
  return true;
}

// On CUDA a fault is known when the step has run, and only the bad rows are spoilt. On the CPU the first call
// raises it and nothing is written: the step runs again without them.
at::Tensor Engine::run(StepRows& rows) {
  at::Tensor outputs;
  while (!outputs.defined()) {
    try {
      outputs = run_forward(rows).cpu();
      kvrope::check(model_.device);
    } catch (const c10::IndexError& fault) {
      if (bad_rows(rows, scheduler_.config()).empty()) throw;
      scheduler_.statistics().fault_texts.emplace_back(fault.what_without_backtrace());
      drop_bad_requests(rows);
    }
  }
  return outputs;
}

at::Tensor Engine::run_forward(const StepRows& rows) {
  inputs_.copy_from(rows);
#ifdef KVROPE_WITH_CUDA
  if (graphs_ && rows.is_decode) {
    const auto run_rows = [this](int64_t size) { return forward(model_, inputs_, size); };
    const at::Tensor outputs = graphs_->run(rows.size(), run_rows);
    scheduler_.statistics().graphs = graphs_->num_captured();
    ++scheduler_.statistics().graph_replays;
    return outputs;
  }
#endif
  return forward(model_, inputs_, rows.size());
}

void Engine::drop_bad_requests(StepRows& rows) {
  for (std::vector<int64_t> bad; !(bad = bad_rows(rows, scheduler_.config())).empty();) {
    const size_t chunk = chunk_of_row(rows, bad.front());
    blank_chunk(rows, chunk);
    if (chunk == rows.chunks.size()) continue;  // padding
    scheduler_.drop(rows.chunks[chunk].request);
    rows.chunks[chunk].request = nullptr;
  }
}

void Engine::compare(const StepRows& rows, const at::Tensor& outputs) {
  Statistics& statistics = scheduler_.statistics();
  const at::Tensor contiguous = outputs.contiguous();
  const int64_t row_size = outputs.size(2) * outputs.size(3);
  for (int64_t layer = 0; layer < outputs.size(0); ++layer) {
    const float* got = contiguous.const_data_ptr<float>() + layer * rows.size() * row_size;
    for (const Chunk& chunk : rows.chunks) {
      for (int64_t i = 0; i < chunk.count; ++i, got += row_size) {
        if (!chunk.request) continue;  // dropped
        const Request& request = *chunk.request;
        const int64_t position = chunk.first + i;
        const float* want = request.expected.data() + (layer * request.length() + position) * row_size;
        const double error = largest_difference(got, want, row_size);
        statistics.largest_error = std::max(statistics.largest_error, error);
        if (error <= kTolerance) continue;
        ++statistics.num_mismatches;
        complain({"step " + std::to_string(statistics.steps) + ", request " + std::to_string(request.id) +
                  ", position " + std::to_string(position) + ", layer " + std::to_string(layer) +
                  ": attention differs by " + std::to_string(error)});
      }
    }
  }
}

void Engine::count(const StepRows& rows) {
  Statistics& statistics = scheduler_.statistics();
  int64_t prefill = 0, decode = 0;
  for (const Chunk& chunk : rows.chunks) {
    if (!chunk.request) continue;
    const bool is_decode = chunk.first >= chunk.request->num_prompt && chunk.count == 1;
    (is_decode ? decode : prefill) += chunk.count;
  }
  statistics.prefill_tokens += prefill;
  statistics.decode_tokens += decode;
  statistics.decode_steps += rows.is_decode;
  statistics.mixed_steps += prefill > 0 && decode > 0;
  statistics.padding_rows += rows.num_padding;
}

void Engine::complain(const std::vector<std::string>& complaints) {
  std::vector<std::string>& kept = scheduler_.statistics().complaints;
  for (const std::string& complaint : complaints) {
    ++scheduler_.statistics().num_complaints;
    if (kept.size() < kMostComplaints) kept.push_back(complaint);
  }
}

}  // namespace kvrope::engine
