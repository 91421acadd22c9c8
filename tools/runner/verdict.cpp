#include "runner/verdict.h"

#include <algorithm>

#include "runner/bench_statistics.h"

namespace kvrope::regress {
namespace {

constexpr double kConfidence = 0.99;  // of each interval

// Microseconds that the call has surely become slower by, and may have become slower by; negative is faster.
struct Change {
  double least, most;
};

// `scale` brings the present times to the earlier run's floor.
Change change_of(const std::vector<double>& before, const std::vector<double>& now, double scale) {
  Interval earlier = median_interval(before, kConfidence), present = median_interval(now, kConfidence);
  return {scale * present.low - earlier.high, scale * present.high - earlier.low};
}

// Whether one of two changes is beyond the limit and the other at least beyond half of it.
bool are_beyond(double one, double other, double limit) {
  return std::max(one, other) > limit && std::min(one, other) > limit / 2;
}

}  // namespace

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::fast:
      return "FAST";
    case Verdict::slow:
      return "SLOW";
    case Verdict::same:
      return "SAME";
    case Verdict::unsure:
      return "UNSURE";
  }
  return "";
}

Judgement judge(const MeasuredTimes& before, const MeasuredTimes& now, double threshold) {
  constexpr double kLevelStep = 0.2;  // microseconds
  constexpr double kBesideLevels = 0.02;
  double earlier = median(before.microseconds);
  double allowed = threshold * earlier;
  double clear = std::max(allowed, kLevelStep + kBesideLevels * earlier);
  Change plain = change_of(before.microseconds, now.microseconds, 1), beside_floor = plain;
  if (before.floor && now.floor) {
    beside_floor = change_of(before.microseconds, now.microseconds, *before.floor / *now.floor);
  }
  Verdict verdict = Verdict::unsure;
  if (are_beyond(plain.least, beside_floor.least, clear)) {
    verdict = Verdict::slow;
  } else if (are_beyond(-plain.most, -beside_floor.most, clear)) {
    verdict = Verdict::fast;
  } else if (std::min(plain.least, beside_floor.least) > -allowed &&
             std::max(plain.most, beside_floor.most) < allowed) {
    verdict = Verdict::same;
  }
  return {verdict, median(now.microseconds) / earlier - 1};
}

}  // namespace kvrope::regress
