// Times several candidates beside each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runner/timed_calls.h"

namespace kvrope::regress {

struct Candidate {
  std::string name;
  int64_t bytes;  // that a call moves
  std::unique_ptr<TimedCalls> calls;
};

struct CandidateTimes {
  std::string name;
  int64_t bytes;
  std::vector<double> microseconds;  // a call, one value a round
};

// Every candidate once a round, in an order drawn anew each round, so that whatever drifts, and whatever one
// candidate leaves behind for the next, meets all alike. A few rounds before the first are not counted.
std::vector<CandidateTimes> time_in_rounds(const std::vector<Candidate>& candidates, int64_t rounds);

}  // namespace kvrope::regress
