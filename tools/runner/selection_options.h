// The options that say which cases a command works on.
#pragma once

#include <CLI/CLI.hpp>

#include "runner/case_selection.h"

namespace kvrope::regress {

void add_selection(CLI::App& command, Selection& selection);

}  // namespace kvrope::regress
