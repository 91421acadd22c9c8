// The options of the command line that several commands share.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "runner/case_selection.h"

namespace kvrope::regress {

// For a path or a selector: an empty one, such as a variable that is not set, is a mistake.
CLI::Validator not_empty();

// FILES, --filter and --tag.
void add_cases(CLI::App& command, Selection& selection);

// --device and --seed.
void add_device_and_seed(CLI::App& command, Selection& selection, const std::string& seed_help);

// All of these.
void add_selection(CLI::App& command, Selection& selection);

// --json
void add_json(CLI::App& command, std::string& path);

}  // namespace kvrope::regress
