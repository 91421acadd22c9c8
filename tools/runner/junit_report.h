// The results as JUnit XML, which CI systems read.
#pragma once

#include <string>
#include <vector>

#include "runner/run_case.h"

namespace kvrope::regress {

class JunitReport {
 public:
  void add(const CaseSpec& spec, const CaseResult& result);
  std::string text() const;

 private:
  std::string cases_;
  int64_t count_ = 0, failures_ = 0, errors_ = 0, skipped_ = 0;
  double seconds_ = 0;
};

}  // namespace kvrope::regress
