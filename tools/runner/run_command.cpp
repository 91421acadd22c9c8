#include "runner/run_command.h"

#include <fstream>
#include <iostream>

#include "runner/console.h"
#include "runner/results_document.h"
#include "runner/run_case.h"
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

// Opened before the first case runs, so that a path that cannot be written costs no run.
class JsonOutput {
 public:
  explicit JsonOutput(const std::string& path) : path_(path) {
    if (path.empty() || path == "-") return;
    file_.open(path);
    if (!file_) throw CommandError(kExitUsage, path + ": cannot be written");
  }

  void write(const std::string& text) {
    if (path_.empty()) return;
    std::ostream& out = path_ == "-" ? std::cout : file_;
    out << text << std::flush;
    if (!out) throw CommandError(kExitUsage, path_ + ": cannot be written");
  }

 private:
  std::string path_;
  std::ofstream file_;
};

}  // namespace

int run_command(const RunOptions& options, const std::vector<std::string>& command_line) {
  std::vector<CaseSpec> cases = select_cases(options.selection);
  c10::Device device = choose_device(options.selection);
  JsonOutput json(options.json_path);
  Console console(options.json_path == "-" ? stderr : stdout);
  ResultsDocument document(command_line, device);
  Counts counts;
  int64_t number = 0;
  for (const CaseSpec& spec : cases) {
    console.begin_case(spec.name, ++number, static_cast<int64_t>(cases.size()));
    CaseResult result = run_case(spec, device, fused_qk_rope_reshape_and_cache);
    ++counts.of[result.disposition];
    document.add(spec, result);
    console.end_case(spec.name, result,
                     repeat_command(command_line.front(), spec, options.selection, device));
    if (options.fail_fast && counts.failed() > 0) break;
  }
  console.summary(counts);
  json.write(document.text());
  return counts.failed() > 0 ? kExitMismatch : 0;
}

}  // namespace kvrope::regress
