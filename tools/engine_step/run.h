// A whole run: random requests for a number of steps, then until all are served.
#pragma once

#include <functional>
#include <string>

#include "engine_step/engine.h"

namespace kvrope::engine {

struct RunOptions {
  SchedulerConfig scheduler;
  ModelConfig model;
  int64_t steps = 1000, seed = 1;
  // Now and then a row goes wrong. "slot", "position": beyond the cache or the rotary table, which costs its
  // request. "block": its table names a wrong block, which the run must report.
  std::string inject;
  c10::Device device = at::kCPU;
};

// Serves and audits the end. `before_step` may look at the engine, and change it.
Statistics serve(const RunOptions& options, const std::function<void(Engine&)>& before_step = {});

// What was done, for people.
std::string report(const RunOptions& options, const Statistics& statistics);

}  // namespace kvrope::engine
