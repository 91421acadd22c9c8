// `kvrope-regress list`: the cases of the files, with what each moves and computes.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvrope::regress {

void add_list_command(CLI::App& app, const std::vector<std::string>& command_line,
                      std::function<int()>& chosen);

}  // namespace kvrope::regress
