// `kvrope-regress fuzz`: random cases against the oracle, each in a process that it may bring down.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/case_selection.h"

namespace kvrope::regress {

struct FuzzOptions {
  Selection selection;  // device and seed
  int64_t cases = 1000;
  double minutes = 0;  // instead of a number of cases, where positive
  int64_t first = 0;   // number of the first case
  int64_t most_tokens = 64;
  int64_t most_failures = 10;
  std::string json_path;
  bool only_prints = false;   // the cases, as a case file
  std::string worker_device;  // run cases for another process, on this device
};

void add_fuzz_command(CLI::App& app, const std::vector<std::string>& command_line,
                      std::function<int()>& chosen);

int fuzz_command(const FuzzOptions& options, const std::vector<std::string>& command_line);

}  // namespace kvrope::regress
