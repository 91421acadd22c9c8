#include "runner/selection_options.h"

#include <limits>

namespace kvrope::regress {

void add_selection(CLI::App& command, Selection& selection) {
  command.add_option("FILES", selection.files, "Case files (JSON)")->required();
  command.add_option("--device", selection.device, "Where the calls run")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  command
      .add_option("--filter", selection.filter,
                  "Only cases whose whole name matches this glob; * matches / too")
      ->type_name("GLOB");
  command.add_option("--tag", selection.tags, "Only cases with any of these tags, separated by commas")
      ->type_name("TAGS");
  command.add_option("--seed", selection.seed, "Seed of every case, instead of its own")
      ->check(CLI::Range(int64_t{0}, std::numeric_limits<int64_t>::max()));
}

}  // namespace kvrope::regress
