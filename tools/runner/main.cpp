// kvrope-regress: the shape regression runner. Exit codes: 0 all passed, 1 a mismatch, 2 usage or a bad case
// file, 3 the asked-for device is missing.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <limits>

#include "runner/build_info.h"
#include "runner/run_command.h"

namespace {

using namespace kvrope::regress;

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

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shape regression of the fused rotary embedding and paged KV cache write.", "kvrope-regress");
  app.set_version_flag("--version", std::string("kvrope-regress ") + kBuildVersion);
  app.require_subcommand(1);

  RunOptions options;
  CLI::App& run = *app.add_subcommand("run", "Compare every case with the double-precision oracle");
  add_selection(run, options.selection);
  run.add_option("--json", options.json_path, "Write the results here; - is standard output")
      ->type_name("OUT");
  run.add_flag("--fail-fast", options.fail_fast, "Stop after the first case that fails");

  try {
    app.parse(argc, argv);
    return run_command(options, std::vector<std::string>(argv, argv + argc));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  } catch (const CommandError& error) {
    std::fprintf(stderr, "kvrope-regress: %s\n", error.what());
    return error.exit_code;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvrope-regress: %s\n", error.what());
    return kExitUsage;
  }
}
