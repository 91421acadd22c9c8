// Draws cases, hands them to worker processes and shrinks what fails.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runner/case_worker.h"
#include "runner/console.h"
#include "runner/fuzz_case.h"

namespace kvrope::regress {

struct FuzzPlan {
  int64_t seed = 0, first = 0, cases = 0;
  double seconds = 0;  // 0: until all cases have run
  int64_t most_tokens = 64;
  int64_t most_failures = 10;
  std::vector<std::string> worker;  // command of a worker process
  int workers = 1;
};

struct FuzzEvents {
  std::function<void(int64_t done, int64_t failures)> progress;
  std::function<void(const Json& drawn, const Json& shrunk, const CaseResult& result)> failure;
};

class FuzzRun {
 public:
  FuzzRun(FuzzPlan plan, FuzzEvents events);

  // Until all cases have run, the time or the failures are used up, or an Interrupt has come. What is told,
  // and in which order, does not depend on the speed of the workers.
  void run();
  const Counts& counts() const { return counts_; }
  std::string summary() const;

 private:
  using Clock = std::chrono::steady_clock;

  bool may_start_another() const;
  void start_cases();
  void collect_answers();
  void settle();
  void settle_failure(const FuzzCase& failing, CaseResult result);
  double seconds_gone() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  FuzzPlan plan_;
  FuzzEvents events_;
  Clock::time_point start_ = Clock::now();
  std::vector<CaseWorker> workers_;
  std::vector<int64_t> running_;         // number of the case of each worker, -1 for none
  std::map<int64_t, CaseResult> ready_;  // results of cases before which others are still running
  int64_t next_ = 0, settled_ = 0;       // counted from the first case
  Counts counts_;
};

}  // namespace kvrope::regress
