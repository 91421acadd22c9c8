#include "runner/run_command.h"

#include <memory>

#include "runner/console.h"
#include "runner/dump_case.h"
#include "runner/interrupt.h"
#include "runner/junit_report.h"
#include "runner/output_file.h"
#include "runner/results_document.h"
#include "runner/run_case.h"
#include "runner/selection_options.h"
#include "runner/shell_quote.h"

namespace kvrope::regress {
namespace {

std::string repeat_command(const std::string& program, const CaseSpec& spec, const Selection& selection,
                           c10::Device device) {
  std::string command = shell_quoted(program) + " run " + shell_quoted(spec.file) + " --filter " +
                        shell_quoted(escaped_glob(spec.name)) + " --device " +
                        (device.is_cuda() ? "cuda" : "cpu");
  if (selection.seed) command += " --seed " + std::to_string(*selection.seed);
  return command;
}

// Standard output then holds the results alone.
bool takes_stdout(const RunOptions& options) {
  return options.json_path == "-" || options.junit_path == "-";
}

void make_folder(const std::string& path) {
  std::error_code error;
  if (!path.empty()) std::filesystem::create_directories(path, error);
  if (error) throw CommandError(kExitUsage, path + ": cannot be made: " + error.message());
}

// Runs the cases one after the other and keeps what is told of them.
class Run {
 public:
  Run(const RunOptions& options, const std::vector<std::string>& command_line)
      : options_(options),
        program_(command_line.front()),
        cases_(select_cases(options.selection)),
        device_(choose_device(options.selection)),
        json_(options.json_path),
        junit_(options.junit_path),
        console_(takes_stdout(options) ? stderr : stdout, takes_stdout(options)),
        document_(command_line, device_) {
    make_folder(options.dump_path);
  }

  int run() {
    Interrupt interrupt;
    int64_t number = 0;
    for (const CaseSpec& spec : cases_) {
      if (Interrupt::has_come()) break;
      run_one(spec, ++number);
      if (options_.fail_fast && counts_.failed() > 0) break;
    }
    finish();
    if (Interrupt::has_come()) return Interrupt::exit_code();
    if (counts_.failed() > 0) return kExitMismatch;
    return counts_.passed() > 0 ? 0 : kExitUsage;
  }

 private:
  void run_one(const CaseSpec& spec, int64_t number) {
    std::string repeat = repeat_command(program_, spec, options_.selection, device_);
    OnMismatch dump;
    if (!options_.dump_path.empty()) {
      dump = [&](const MismatchedCall& call) { dump_case(options_.dump_path, number, spec, call, repeat); };
    }
    console_.begin_case(spec.name, number, static_cast<int64_t>(cases_.size()));
    CaseResult result = run_case(spec, device_, fused_qk_rope_reshape_and_cache, dump);
    ++counts_.of[result.disposition];
    document_.add(spec, result);
    report_.add(spec, result);
    console_.end_case(spec.name, result, repeat);
  }

  void finish() {
    auto total = static_cast<int64_t>(cases_.size());
    if (Interrupt::has_come()) console_.note("interrupted");
    if (counts_.all() < total) {
      console_.note(std::to_string(counts_.all()) + " of " + std::to_string(total) + " cases ran");
    }
    if (counts_.all() == counts_.skipped() && counts_.all() > 0) {
      console_.note("0 cases ran: all of them were skipped");
    }
    document_.set_meta("cases", total);
    document_.set_meta("counts", counts_.as_json());
    document_.set_meta("interrupted", Interrupt::has_come());
    json_.write(document_.text());
    junit_.write(report_.text());
    console_.summary(counts_);
  }

  const RunOptions& options_;
  std::string program_;
  std::vector<CaseSpec> cases_;
  c10::Device device_;
  OutputFile json_, junit_;
  Console console_;
  ResultsDocument document_;
  JunitReport report_;
  Counts counts_;
};

}  // namespace

int run_command(const RunOptions& options, const std::vector<std::string>& command_line) {
  if (options.json_path == "-" && options.junit_path == "-") {
    throw CommandError(kExitUsage, "--json and --junit cannot both be standard output");
  }
  require_no_input(options.json_path, options.selection.files);
  require_no_input(options.junit_path, options.selection.files);
  return Run(options, command_line).run();
}

void add_run_command(CLI::App& app, const std::vector<std::string>& command_line,
                     std::function<int()>& chosen) {
  CLI::App& command = *app.add_subcommand("run", "Compare every case with the double-precision oracle");
  auto options = std::make_shared<RunOptions>();
  add_selection(command, options->selection);
  add_json(command, options->json_path);
  command.add_option("--junit", options->junit_path, "Write the results here as JUnit XML")
      ->check(not_empty())
      ->type_name("OUT");
  command.add_option("--dump", options->dump_path, kDumpHelp)->check(not_empty())->type_name("DIR");
  command.add_flag("--fail-fast", options->fail_fast, "Stop after the first case that fails");
  command.callback([=, &chosen] { chosen = [=] { return run_command(*options, command_line); }; });
}

}  // namespace kvrope::regress
