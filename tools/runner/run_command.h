// `kvrope-regress run`: every case against the oracle.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

#include "runner/case_selection.h"

namespace kvrope::regress {

struct RunOptions {
  Selection selection;
  std::string json_path;   // "-" is standard output, which then holds nothing else; empty for none
  std::string junit_path;  // empty for none
  std::string dump_path;   // a folder; empty for none
  bool fail_fast = false;
};

// Adds the subcommand, which sets `chosen` to what is to be run after parsing.
void add_run_command(CLI::App& app, const std::vector<std::string>& command_line,
                     std::function<int()>& chosen);

// Returns the exit code; throws CommandError. `command_line` is that of the program, for the results and for
// the command that repeats a case.
int run_command(const RunOptions& options, const std::vector<std::string>& command_line);

}  // namespace kvrope::regress
