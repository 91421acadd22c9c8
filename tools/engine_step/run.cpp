#include "engine_step/run.h"

#include <cstdio>

#include "engine_step/workload.h"
#include "runner/random.h"

namespace kvrope::engine {
namespace {

// In one step of twenty one row gets a wrong number; one that does not fit is near or far off.
void inject_fault(const std::string& kind, const SchedulerConfig& config, regress::Random& random,
                  StepRows& rows) {
  if (random.below(20) > 0) return;
  const auto row = static_cast<size_t>(random.below(rows.size() - rows.num_padding));
  const int64_t beyond = random.below(2) > 0 ? 0 : random.below(int64_t{1} << 40);
  if (kind == "slot") {
    rows.slots[row] = config.num_slots() + beyond;
  } else if (kind == "block") {
    int64_t& block = rows.tables[row * static_cast<size_t>(config.max_blocks())];
    block = (block + 1) % config.num_blocks;
  } else {
    rows.positions[row] = random.below(3) > 0 ? config.max_length + beyond : -1 - beyond;
  }
}

}  // namespace

Statistics serve(const RunOptions& options, const std::function<void(Engine&)>& before_step) {
  Engine engine(options.scheduler, options.model, options.seed, options.device);
  Workload workload(options.seed, options.model.vocabulary, options.scheduler.max_length);
  regress::Random random(options.seed, "inject");
  if (!options.inject.empty()) {
    engine.tamper = [&](StepRows& rows) { inject_fault(options.inject, options.scheduler, random, rows); };
  }
  for (int64_t step = 0; step < options.steps || !engine.scheduler().is_idle(); ++step) {
    if (step < options.steps && engine.scheduler().num_waiting() < options.scheduler.max_running) {
      for (const RequestPtr& request : workload.arrivals()) engine.submit(request);
    }
    if (before_step) before_step(engine);
    if (!engine.step() && !engine.scheduler().is_idle()) break;  // and would never end
  }
  engine.audit();
  return engine.statistics();
}

std::string report(const RunOptions& options, const Statistics& s) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) {
    text += name + std::string(10 - name.size(), ' ') + value + "\n";
  };
  line("steps", number(s.steps) + ": " + number(s.decode_steps) + " of decode alone, " +
                    number(s.mixed_steps) + " of decode and prefill");
  line("tokens", number(s.prefill_tokens) + " of prefill, " + number(s.decode_tokens) + " of decode, " +
                     number(s.shared_tokens) + " found in shared blocks; " + number(s.padding_rows) +
                     " padding rows");
  line("requests", number(s.finished) + " finished, " + number(s.dropped) + " dropped; " +
                       number(s.preemptions) + " preemptions");
  line("blocks",
       number(s.blocks_taken) + " taken; " + number(s.window_evictions) + " evicted from the window caches");
  if (options.device.is_cuda()) {
    line("graphs", number(s.graphs) + " captured, " + number(s.graph_replays) + " replays");
  }
  if (!s.fault_texts.empty()) {
    line("faults",
         number(static_cast<int64_t>(s.fault_texts.size())) + ", the first: " + s.fault_texts.front());
  }
  char error[64];
  std::snprintf(error, sizeof error, "%.1e, tolerance %.0e", s.largest_error, kTolerance);
  line("error", error);
  for (const std::string& complaint : s.complaints) text += complaint + "\n";
  text += s.num_complaints == 0 ? "passed\n" : "failed: " + number(s.num_complaints) + " complaints\n";
  return text;
}

}  // namespace kvrope::engine
