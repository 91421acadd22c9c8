#include "runner/verdict.h"

#include <algorithm>

#include "runner/bench_statistics.h"

namespace kvrope::regress {
namespace {

constexpr double kConfidence = 0.99;  // of each interval
constexpr double kLevelStep = 0.2;    // microseconds

// `scale` brings the present times to the earlier run's floor.
Verdict judge_times(const std::vector<double>& before, const std::vector<double>& now, double scale,
                    double threshold) {
  Interval earlier = median_interval(before, kConfidence), present = median_interval(now, kConfidence);
  double least = scale * present.low - earlier.high;  // that the call has become slower by
  double most = scale * present.high - earlier.low;
  double allowed = threshold * median(before);
  double clear = std::max(allowed, kLevelStep);
  if (least > clear) return Verdict::slow;
  if (most < -clear) return Verdict::fast;
  return least > -allowed && most < allowed ? Verdict::same : Verdict::unsure;
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
  double change = median(now.microseconds) / median(before.microseconds) - 1;
  Verdict verdict = judge_times(before.microseconds, now.microseconds, 1, threshold);
  if (before.floor && now.floor) {
    double scale = *before.floor / *now.floor;
    Verdict beside_floor = judge_times(before.microseconds, now.microseconds, scale, threshold);
    if (beside_floor != verdict) verdict = Verdict::unsure;
  }
  return {verdict, change};
}

}  // namespace kvrope::regress
