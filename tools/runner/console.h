// What the runner says to people: a progress line on a terminal, plain lines elsewhere, the mismatches of
// what failed and one last line of counts.
#pragma once

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "runner/json_document.h"
#include "runner/run_case.h"

namespace kvrope::regress {

struct Counts {
  std::map<Disposition, int64_t> of;

  int64_t passed() const;  // rejected-as-expected counts as passed
  int64_t failed() const;  // error counts as failed
  int64_t skipped() const;
  int64_t all() const { return passed() + failed() + skipped(); }
  Json as_json() const;  // of every disposition
};

// A line for each mismatch that was kept, and one for how many more there are.
std::vector<std::string> mismatch_lines(const Findings& findings);

class Console {
 public:
  // Colour and progress only where `stream` is a terminal; NO_COLOR takes the colour away. A quiet one says
  // nothing of what goes well.
  explicit Console(std::FILE* stream, bool is_quiet = false);

  void begin_case(const std::string& name, int64_t number, int64_t total);
  void end_case(const std::string& name, const CaseResult& result, const std::string& repeat_command);
  // The progress line of `done` of `total` cases (0: unknown). Elsewhere than on a terminal a line now and
  // then, if `elsewhere_too`.
  void progress(int64_t done, int64_t total, const std::string& text, bool elsewhere_too);
  void note(const std::string& line);
  void summary(const Counts& counts);

 private:
  using Clock = std::chrono::steady_clock;
  void clear_progress();
  std::string coloured(Disposition disposition, const std::string& text) const;

  std::FILE* stream_;
  bool is_quiet_, is_terminal_, has_colour_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_progress_;
};

}  // namespace kvrope::regress
