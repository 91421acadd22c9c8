// Which cases of the files a command works on: what run, fuzz and bench share of the command line.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

constexpr int kExitMismatch = 1, kExitUsage = 2, kExitNoDevice = 3;

// The message of a command that ends with this exit code.
struct CommandError : std::runtime_error {
  CommandError(int code, const std::string& message) : std::runtime_error(message), exit_code(code) {}
  int exit_code;
};

struct Selection {
  std::vector<std::string> files;
  std::string filter;           // glob over the whole name; empty takes all
  std::string tags;             // a TagExpression; empty takes all
  std::optional<int64_t> seed;  // instead of the cases' own
  std::string device = "auto";
};

// The cases in the order of the files. Throws CommandError for a bad file and where none is left.
std::vector<CaseSpec> select_cases(const Selection& selection);

// Throws CommandError when the asked-for device is missing.
c10::Device choose_device(const Selection& selection);

}  // namespace kvrope::regress
