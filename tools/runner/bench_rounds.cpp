#include "runner/bench_rounds.h"

#include <numeric>

#include "runner/random.h"

namespace kvrope::regress {

std::vector<CandidateTimes> time_in_rounds(const std::vector<Candidate>& candidates, int64_t rounds) {
  constexpr int64_t kUncounted = 3;
  std::vector<CandidateTimes> times;
  for (const Candidate& candidate : candidates) times.push_back({candidate.name, candidate.bytes, {}});
  std::vector<size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), 0);
  Random random(0, "rounds");
  for (int64_t round = -kUncounted; round < rounds; ++round) {
    random.shuffle(order);
    for (size_t i : order) {
      double measured = candidates[i].calls->microseconds();
      if (round >= 0) times[i].microseconds.push_back(measured);
    }
  }
  return times;
}

}  // namespace kvrope::regress
