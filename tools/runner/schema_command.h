// `kvrope-regress schema`: the JSON Schema of case files.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace kvrope::regress {

void add_schema_command(CLI::App& app, const std::vector<std::string>& command_line,
                        std::function<int()>& chosen);

// The text of tests/shapes/case_file.schema.json, put in by the build.
const std::string& case_file_schema();

}  // namespace kvrope::regress
