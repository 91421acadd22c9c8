// kvrope-regress: the shape regression runner.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>

#include "runner/bench_cli.h"
#include "runner/build_info.h"
#include "runner/fuzz_command.h"
#include "runner/list_command.h"
#include "runner/printable.h"
#include "runner/run_command.h"
#include "runner/schema_command.h"

using namespace kvrope::regress;

constexpr const char* kExitCodes =
    "Exit codes: 0 all passed; 1 a mismatch or a regression; 2 usage, a bad case file, an output that cannot "
    "be written, or "
    "no case "
    "that ran; 3 the asked-for device is missing; 130 and 143 interrupted (Ctrl-C, SIGTERM), with the "
    "results so far; "
    "a second signal, some seconds later, ends it at once.";

int fail(const char* message, int exit_code) {
  std::fprintf(stderr, "kvrope-regress: %s\n", printable(message).c_str());
  return exit_code;
}

int main(int argc, char** argv) {
  CLI::App app("Shape regression of the fused rotary embedding and paged KV cache write.", "kvrope-regress");
  app.set_version_flag("--version", std::string("kvrope-regress ") + kBuildVersion);
  app.require_subcommand(1);
  app.footer(kExitCodes);

  const std::vector<std::string> command_line(argv, argv + argc);
  std::function<int()> chosen;
  add_run_command(app, command_line, chosen);
  add_fuzz_command(app, command_line, chosen);
  add_list_command(app, command_line, chosen);
  add_bench_commands(app, command_line, chosen);
  add_schema_command(app, command_line, chosen);

  try {
    app.parse(argc, argv);
    return chosen();
  } catch (const CLI::RequiredError& error) {
    if (!app.get_subcommands().empty() || app.remaining().empty())
      return app.exit(error) == 0 ? 0 : kExitUsage;
    return fail(("no such command: " + app.remaining().front() + " (--help lists them)").c_str(), kExitUsage);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  } catch (const CommandError& error) {
    return fail(error.what(), error.exit_code);
  } catch (const std::exception& error) {
    return fail(error.what(), kExitUsage);
  }
}
