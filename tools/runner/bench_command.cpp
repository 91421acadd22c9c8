#include "runner/bench_command.h"

#include <c10/util/Exception.h>

#include "runner/bench_console.h"
#include "runner/bench_document.h"
#include "runner/console.h"
#include "runner/interrupt.h"
#include "runner/output_file.h"
#include "runner/results_comparison.h"
#include "runner/results_document.h"

namespace kvrope::regress {
namespace {

class Bench {
 public:
  Bench(const BenchOptions& options, c10::Device device, std::FILE* stream,
        const std::vector<std::string>& command_line)
      : options_(options), device_(device), stream_(stream), document_(command_line, device) {}

  void measure(const CaseSpec& spec) {
    BenchCase bench(spec, device_);
    BenchCheck check = checked(bench);
    ++counts_.of[check.result.disposition];
    if (check.result.disposition != Disposition::passed) {
      report(spec, check.result);
      document_.add(spec, check.result);
      return;
    }
    for (L2State l2 : options_.l2.empty() ? l2_states_of(spec) : options_.l2)
      measure_in(spec, bench, check, l2);
  }

  const Counts& counts() const { return counts_; }
  const ResultsDocument& document() const { return document_; }

  const ResultsDocument& finished() {
    document_.set_meta("counts", counts_.as_json());
    document_.set_meta("interrupted", Interrupt::has_come());
    document_.set_meta("planted_slowdown", options_.settings.planted_slowdown);
    return document_;
  }

 private:
  static BenchCheck checked(BenchCase& bench) {
    try {
      return bench.check();
    } catch (const std::exception& error) {
      return {failure(error), "nothing: it failed"};
    }
  }

  void measure_in(const CaseSpec& spec, BenchCase& bench, const BenchCheck& check, L2State l2) {
    try {
      BenchResult result = bench.measure(l2, options_.settings);
      print_bench_result(stream_, spec, check, result);
      document_.add(spec, check.result, describe(spec, check, result));
    } catch (const std::exception& error) {
      CaseResult failed = failure(error);
      --counts_.of[check.result.disposition];
      ++counts_.of[failed.disposition];
      report(spec, failed);
      document_.add(spec, failed, {{"l2", name_of(l2)}});
    }
  }

  static CaseResult failure(const std::exception& error) {
    const auto* from_torch = dynamic_cast<const c10::Error*>(&error);
    std::string message = from_torch ? from_torch->what_without_backtrace() : error.what();
    bool is_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
    return {is_memory ? Disposition::skipped : Disposition::error, message, {}, 0};
  }

  void report(const CaseSpec& spec, const CaseResult& result) {
    std::fprintf(stream_, "%s %s: %s\n", name_of(result.disposition), spec.name.c_str(),
                 result.message.c_str());
  }

  const BenchOptions& options_;
  c10::Device device_;
  std::FILE* stream_;
  ResultsDocument document_;
  Counts counts_;
};

}  // namespace

int bench_command(const BenchOptions& options, const std::vector<std::string>& command_line) {
  std::vector<CaseSpec> cases = select_cases(options.selection);
  Json baseline;
  if (!options.baseline_path.empty()) baseline = read_results(options.baseline_path);
  c10::Device device = choose_device(options.selection);
  require_no_input(options.json_path, options.selection.files);
  require_no_input(options.json_path, {options.baseline_path});
  OutputFile json(options.json_path);
  std::FILE* stream = options.json_path == "-" ? stderr : stdout;
  print_bench_heading(stream, device);
  Bench bench(options, device, stream, command_line);
  Interrupt interrupt;
  for (const CaseSpec& spec : cases) {
    if (Interrupt::has_come()) break;
    bench.measure(spec);
  }
  json.write(bench.finished().text());
  bool is_worse = false;
  if (!options.baseline_path.empty()) {
    std::string note = device_note(baseline, bench.document().json());
    if (!note.empty()) std::fprintf(stream, "%s\n", note.c_str());
    std::vector<Comparison> found = compare_results(baseline, bench.document().json(), options.threshold);
    // A filter leaves out what the earlier run had.
    std::erase_if(found, [](const Comparison& comparison) { return comparison.word == "GONE"; });
    is_worse = print_comparisons(stream, found);
  }
  Console(stream).summary(bench.counts());
  if (Interrupt::has_come()) return Interrupt::exit_code();
  if (!options.baseline_path.empty()) require_common_cases(baseline, bench.document().json());
  return is_worse || bench.counts().failed() > 0 ? kExitMismatch : 0;
}

}  // namespace kvrope::regress
