// The command lines of `bench` and `compare`.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvrope::regress {

// Adds both. The subcommands set `chosen` to what is to be run after parsing, which returns the exit code.
void add_bench_commands(CLI::App& app, const std::vector<std::string>& command_line,
                        std::function<int()>& chosen);

}  // namespace kvrope::regress
