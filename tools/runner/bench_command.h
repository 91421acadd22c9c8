// `kvrope-regress bench`: every case measured beside its floors.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runner/bench_case.h"
#include "runner/case_selection.h"

namespace kvrope::regress {

struct BenchOptions {
  Selection selection;
  std::string json_path;      // as of run
  std::string baseline_path;  // an earlier result document; empty for none
  double threshold = 0.05;
  std::vector<L2State> l2;  // instead of what the cases' tags say
  BenchSettings settings;
};

// Returns the exit code: 1 where a case failed its check or is SLOW against the baseline. Throws
// CommandError.
int bench_command(const BenchOptions& options, const std::vector<std::string>& command_line);

}  // namespace kvrope::regress
