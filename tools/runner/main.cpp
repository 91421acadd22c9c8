// kvrope-regress: the shape regression runner. Exit codes: 0 all passed, 1 a mismatch, 2 usage or a bad case
// file, 3 the asked-for device is missing.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "runner/bench_cli.h"
#include "runner/build_info.h"
#include "runner/run_command.h"
#include "runner/selection_options.h"

using namespace kvrope::regress;

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

  const std::vector<std::string> command_line(argv, argv + argc);
  std::function<int()> chosen = [&] { return run_command(options, command_line); };
  add_bench_commands(app, command_line, chosen);

  try {
    app.parse(argc, argv);
    return chosen();
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
