#include "runner/bench_cli.h"

#include <cstdio>
#include <memory>

#include "runner/bench_command.h"
#include "runner/results_comparison.h"
#include "runner/selection_options.h"

namespace kvrope::regress {
namespace {

void add_threshold(CLI::App& command, double& threshold) {
  command.add_option("--threshold", threshold, "Change of a time that counts, 0.05 is 5 %")
      ->check(CLI::Range(0.001, 10.0))
      ->capture_default_str();
}

void add_bench(CLI::App& app, const std::vector<std::string>& command_line, std::function<int()>& chosen) {
  CLI::App& command = *app.add_subcommand("bench", "Measure every case beside copy, memcpy and chain");
  auto options = std::make_shared<BenchOptions>();
  add_selection(command, options->selection);
  add_json(command, options->json_path);
  command
      .add_option("--baseline", options->baseline_path, "Results to compare with: FAST, SLOW, SAME or UNSURE")
      ->check(not_empty())
      ->type_name("OLD");
  add_threshold(command, options->threshold);
  command.add_option("--rounds", options->settings.rounds, "Rounds that are counted")
      ->check(CLI::Range(int64_t{10}, int64_t{10000}))
      ->capture_default_str();
  command
      .add_option("--l2", options->l2,
                  "L2 states, instead of what tags say: warm, flushed, rotating (several: commas)")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(l2_states()).description(""))
      ->type_name("STATE");
  const std::vector<std::pair<std::string, PdlChoice>> pdl = {
      {"on", PdlChoice::on}, {"off", PdlChoice::off}, {"both", PdlChoice::both}};
  command
      .add_option("--pdl", options->settings.pdl,
                  "Programmatic dependent launch: on (as shipped), off or both")
      ->transform(CLI::CheckedTransformer(pdl).description(""))
      ->type_name("WHICH");
  // For tests of the verdicts: makes more calls than it divides the time by.
  command.add_option("--plant-slowdown", options->settings.planted_slowdown)
      ->check(CLI::Range(0.0, 10.0))
      ->group("");
  command.callback([=, &chosen] { chosen = [=] { return bench_command(*options, command_line); }; });
}

void add_compare(CLI::App& app, std::function<int()>& chosen) {
  struct Options {
    std::string before, now;
    double threshold = 0.05;
  };
  CLI::App& command = *app.add_subcommand("compare", "Compare two result documents, of run or of bench");
  auto options = std::make_shared<Options>();
  command.add_option("OLD", options->before, "Earlier results (JSON)")->required();
  command.add_option("NEW", options->now, "Present results (JSON)")->required();
  add_threshold(command, options->threshold);
  command.callback([=, &chosen] {
    chosen = [=] {
      Json before = read_results(options->before), now = read_results(options->now);
      std::string note = device_note(before, now);
      if (!note.empty()) std::printf("%s\n", note.c_str());
      bool is_worse = print_comparisons(stdout, compare_results(before, now, options->threshold));
      require_common_cases(before, now);
      return is_worse ? kExitMismatch : 0;
    };
  });
}

}  // namespace

void add_bench_commands(CLI::App& app, const std::vector<std::string>& command_line,
                        std::function<int()>& chosen) {
  add_bench(app, command_line, chosen);
  add_compare(app, chosen);
}

}  // namespace kvrope::regress
