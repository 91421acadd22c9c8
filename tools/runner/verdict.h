// Whether a call has become slower or faster than in an earlier run.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace kvrope::regress {

enum class Verdict { fast, slow, same, unsure };
const char* name_of(Verdict verdict);  // "FAST", ...

// One candidate of one case in one run.
struct MeasuredTimes {
  std::vector<double> microseconds;  // a call, one value a round
  std::optional<double> floor;       // median of the run's own floor, which no change of ours moves
};

struct Judgement {
  Verdict verdict;
  double change;  // of the median: 0.1 is 10 % slower
};

// SLOW and FAST are for changes beyond `threshold` (0.05: 5 %), SAME for what surely is within it, UNSURE for
// the rest. Three sources of noise:
// - within a run: the bounds of the medians' intervals are compared, not the medians;
// - a run as a whole (clocks, the machine's other users) moves the floors with the calls, and a floor may
// move
//   alone: of the change in microseconds and that in multiples of the floor, one must be beyond the threshold
//   and the other at least half as far;
// - kernels of a few microseconds run at one of two levels, 0.18 us apart on the H200, from run to run:
//   differences up to 0.2 us and 2 % more are never SLOW or FAST, whatever part of the time they are.
Judgement judge(const MeasuredTimes& before, const MeasuredTimes& now, double threshold);

}  // namespace kvrope::regress
