#include "runner/selection_options.h"

#include <limits>

namespace kvrope::regress {

CLI::Validator not_empty() {
  return CLI::Validator(
      [](const std::string& text) { return text.empty() ? std::string("must not be empty") : std::string(); },
      "");
}

void add_cases(CLI::App& command, Selection& selection) {
  command.add_option("FILES", selection.files, "Case files (JSON)")->required();
  command
      .add_option("--filter", selection.filter,
                  "Only cases whose whole name matches this glob; * matches / too")
      ->check(not_empty())
      ->type_name("GLOB");
  command
      .add_option("--tag", selection.tags,
                  "Only cases whose tags fulfil this: tags joined by and, or, not, ( ); a comma is or")
      ->check(not_empty())
      ->type_name("EXPR");
}

void add_device_and_seed(CLI::App& command, Selection& selection, const std::string& seed_help) {
  command.add_option("--device", selection.device, "Where the calls run")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--seed", selection.seed, seed_help)
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
}

void add_selection(CLI::App& command, Selection& selection) {
  add_cases(command, selection);
  add_device_and_seed(command, selection, "Seed of every case, instead of its own");
}

void add_json(CLI::App& command, std::string& path) {
  command.add_option("--json", path, "Write the results here; - is standard output")
      ->check(not_empty())
      ->type_name("OUT");
}

}  // namespace kvrope::regress
