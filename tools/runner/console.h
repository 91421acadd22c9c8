// What the runner says to people: a progress line on a terminal, plain lines elsewhere, the mismatches of
// what failed and one last line of counts.
#pragma once

#include <cstdio>
#include <map>
#include <string>

#include "runner/run_case.h"

namespace kvrope::regress {

struct Counts {
  std::map<Disposition, int64_t> of;

  int64_t passed() const;  // rejected-as-expected counts as passed
  int64_t failed() const;  // error counts as failed
  int64_t skipped() const;
};

class Console {
 public:
  // Colour and progress only where `stream` is a terminal; NO_COLOR takes the colour away.
  explicit Console(std::FILE* stream);

  void begin_case(const std::string& name, int64_t number, int64_t total);
  void end_case(const std::string& name, const CaseResult& result, const std::string& repeat_command);
  void summary(const Counts& counts);

 private:
  void clear_progress();
  std::string coloured(Disposition disposition, const std::string& text) const;

  std::FILE* stream_;
  bool is_terminal_, has_colour_;
};

}  // namespace kvrope::regress
