#include "runner/fuzz_command.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "runner/case_worker.h"
#include "runner/console.h"
#include "runner/fuzz_run.h"
#include "runner/interrupt.h"
#include "runner/output_file.h"
#include "runner/results_document.h"
#include "runner/selection_options.h"
#include "runner/shell_quote.h"

namespace kvrope::regress {
namespace {

// The oracle takes most of the time, on the CPU; each process on a GPU takes some of its memory.
int number_of_workers(c10::Device device) {
  constexpr int kMostOnOneGpu = 4;
  int cores = std::max(1, at::get_num_threads());
  return device.is_cuda() ? std::min(cores, kMostOnOneGpu) : cores;
}

int serve(const std::string& device) {
  at::set_num_threads(1);  // there is a worker for each core
  serve_cases(kWorkerSocket, c10::Device(device));
  return 0;
}

int print_cases(const FuzzOptions& options) {
  OutputFile out("-");
  out.write("{\"schema_version\": 1, \"cases\": [");
  for (int64_t i = 0; i < options.cases; ++i) {
    FuzzCase drawn =
        make_fuzz_case(options.selection.seed.value_or(0), options.first + i, options.most_tokens);
    out.write((i > 0 ? ",\n" : "\n") + drawn.keys.dump());
  }
  out.write("\n]}\n");
  return 0;
}

// The text that a shell takes to run the case again, without a file.
std::string repeat_command(const std::string& program, const Json& keys, c10::Device device) {
  return "echo " + shell_quoted(file_with_case(keys)) + " | " + shell_quoted(program) +
         " run /dev/stdin --device " + (device.is_cuda() ? "cuda" : "cpu");
}

// Tells what a fuzz finds, on the console and in the result document.
class FuzzReport {
 public:
  FuzzReport(const FuzzOptions& options, const std::vector<std::string>& command_line, c10::Device device)
      : program_(command_line.front()),
        device_(device),
        json_(options.json_path),
        console_(options.json_path == "-" ? stderr : stdout, options.json_path == "-"),
        document_(command_line, device) {
    document_.set_meta("seed", options.selection.seed.value_or(0));
  }

  void progress(int64_t done, int64_t total, int64_t failures) {
    console_.progress(done, total, std::to_string(failures) + " failed", true);
  }

  void failure(const Json& drawn, const Json& shrunk, const CaseResult& result) {
    std::string repeat = repeat_command(program_, shrunk, device_);
    console_.end_case(drawn.at("id"), result, repeat);
    console_.note("  case: " + shrunk.dump());
    Json more = {{"case", shrunk}, {"case_as_drawn", drawn}, {"repeat", repeat}};
    CaseSpec spec;
    spec.name = drawn.at("id");
    spec.seed = shrunk.value("seed", int64_t{0});
    document_.add(spec, result, more);
  }

  void finish(const Counts& counts, const std::string& line) {
    if (Interrupt::has_come()) console_.note("interrupted");
    console_.note(line);
    document_.set_meta("cases", counts.all());
    document_.set_meta("counts", counts.as_json());
    document_.set_meta("interrupted", Interrupt::has_come());
    json_.write(document_.text());
    console_.summary(counts);
  }

 private:
  std::string program_;
  c10::Device device_;
  OutputFile json_;
  Console console_;
  ResultsDocument document_;
};

FuzzPlan plan_of(const FuzzOptions& options, const std::vector<std::string>& worker, int workers) {
  FuzzPlan plan;
  plan.seed = options.selection.seed.value_or(0);
  plan.first = options.first;
  plan.cases = options.minutes > 0 ? std::numeric_limits<int64_t>::max() - options.first : options.cases;
  plan.seconds = 60 * options.minutes;
  plan.most_tokens = options.most_tokens;
  plan.most_failures = options.most_failures;
  plan.worker = worker;
  plan.workers = workers;
  return plan;
}

}  // namespace

int fuzz_command(const FuzzOptions& options, const std::vector<std::string>& command_line) {
  if (!options.worker_device.empty()) return serve(options.worker_device);
  if (options.only_prints) return print_cases(options);
  c10::Device device = choose_device(options.selection);
  FuzzReport report(options, command_line, device);
  Interrupt interrupt;
  const char* name = device.is_cuda() ? "cuda" : "cpu";
  FuzzPlan plan = plan_of(options, {"/proc/self/exe", "fuzz", "--worker", name}, number_of_workers(device));
  FuzzRun run(plan, {[&](int64_t done, int64_t failures) {
                       report.progress(done, options.minutes > 0 ? 0 : options.cases, failures);
                     },
                     [&](const Json& drawn, const Json& shrunk, const CaseResult& result) {
                       report.failure(drawn, shrunk, result);
                     }});
  run.run();
  report.finish(run.counts(), run.summary());
  if (Interrupt::has_come()) return Interrupt::exit_code();
  if (run.counts().failed() > 0) return kExitMismatch;
  return run.counts().passed() > 0 ? 0 : kExitUsage;
}

void add_fuzz_command(CLI::App& app, const std::vector<std::string>& command_line,
                      std::function<int()>& chosen) {
  CLI::App& command = *app.add_subcommand(
      "fuzz",
      "Random cases, valid and invalid, against the oracle; what fails is made small and printed as a case");
  auto options = std::make_shared<FuzzOptions>();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 2;
  add_device_and_seed(command, options->selection,
                      "Seed of the cases: the same seed gives the same cases [0]");
  add_json(command, options->json_path);
  CLI::Option& cases = *command.add_option("--cases", options->cases, "How many cases")
                            ->check(CLI::Range(int64_t{1}, kMost))
                            ->capture_default_str();
  CLI::Option& minutes = *command.add_option("--minutes", options->minutes, "How long, instead of how many")
                              ->check(CLI::Range(0.001, 1e6))
                              ->excludes(&cases);
  command.add_flag("--print", options->only_prints, "Print the cases as a case file instead of running them")
      ->excludes(&minutes);
  command.add_option("--first", options->first, "Number of the first case")
      ->check(CLI::Range(int64_t{0}, kMost))
      ->capture_default_str();
  command.add_option("--max-tokens", options->most_tokens, "Most tokens of a case")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command.add_option("--max-failures", options->most_failures, "Stop after so many failures")
      ->check(CLI::Range(int64_t{1}, kMost))
      ->capture_default_str();
  command.add_option("--worker", options->worker_device)->group("");
  command.callback([=, &chosen] { chosen = [=] { return fuzz_command(*options, command_line); }; });
}

}  // namespace kvrope::regress
