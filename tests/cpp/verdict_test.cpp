// How often verdicts are right, under noise like that of the GPU: rounds that scatter and at times stray,
// runs that drift as a whole, and kernels of a few microseconds that run at one of two levels 0.18 us apart.
#include "runner/verdict.h"

#include <gtest/gtest.h>

#include <map>

#include "runner/bench_statistics.h"
#include "runner/random.h"

namespace kvrope::regress {
namespace {

enum class Levels { none, common, ours_alone, within_run };

struct Machine {
  double microseconds;
  Levels levels = Levels::none;
  double drift = 0.01;       // of a run, floors included
  double own_drift = 0.004;  // of each kernel in a run
  double scatter = 0.005;    // of a round
};

std::vector<double> rounds_of(Random& random, const Machine& machine, double microseconds, double level) {
  std::vector<double> rounds;
  double own = 1 + machine.own_drift * random.normal();
  for (int i = 0; i < 30; ++i) {
    double time = microseconds * own * (1 + machine.scatter * std::abs(random.normal())) + level;
    if (machine.levels == Levels::within_run && i > 14) time += 0.18;
    if (random.uniform() < 0.05) time *= 1.2;  // strays
    rounds.push_back(time);
  }
  return rounds;
}

MeasuredTimes run_of(Random& random, const Machine& machine, double change) {
  double drift = 1 + machine.drift * random.normal();
  double level = random.below(2) ? 0.18 : 0;
  double ours = machine.levels == Levels::none || machine.levels == Levels::within_run ? 0 : level;
  double floors = machine.levels == Levels::common ? level : 0;
  MeasuredTimes times;
  times.microseconds = rounds_of(random, machine, machine.microseconds * drift * (1 + change), ours);
  times.floor = median(rounds_of(random, machine, 0.95 * machine.microseconds * drift, floors));
  return times;
}

constexpr int kRepeats = 2000;

std::map<Verdict, int> verdicts(const Machine& machine, double change) {
  Random random(7, "verdicts");
  std::map<Verdict, int> counts;
  for (int i = 0; i < kRepeats; ++i) {
    MeasuredTimes before = run_of(random, machine, 0), now = run_of(random, machine, change);
    ++counts[judge(before, now, 0.05).verdict];
  }
  return counts;
}

TEST(Verdict, LongCallsUnchangedAreNeitherSlowNorFast) {
  for (double microseconds : {4.0, 8.5, 29.0, 110.0}) {
    auto counts = verdicts({microseconds}, 0);
    EXPECT_EQ(counts[Verdict::slow] + counts[Verdict::fast], 0) << microseconds;
    EXPECT_GT(counts[Verdict::same], kRepeats * 9 / 10) << microseconds;
  }
}

TEST(Verdict, LongCallsATenthSlowerAreSlow) {
  for (double microseconds : {4.0, 8.5, 29.0, 110.0}) {
    int least = microseconds < 8 ? kRepeats * 999 / 1000 : kRepeats;  // the two levels still count at 4 us
    EXPECT_GE(verdicts({microseconds}, 0.1)[Verdict::slow], least) << microseconds;
  }
}

TEST(Verdict, LongCallsATenthFasterAreFast) {
  EXPECT_EQ(verdicts({8.5}, -0.1)[Verdict::fast], kRepeats);
}

TEST(Verdict, ShortCallsAtTwoLevelsAreNeitherSlowNorFast) {
  for (Levels levels : {Levels::none, Levels::common, Levels::ours_alone, Levels::within_run}) {
    for (double microseconds : {1.2, 1.5, 1.8, 2.5}) {
      Machine machine{microseconds, levels};
      if (levels == Levels::ours_alone) machine.drift = 0.003;  // nothing but the levels
      auto counts = verdicts(machine, 0);
      EXPECT_EQ(counts[Verdict::slow] + counts[Verdict::fast], 0)
          << microseconds << ", levels " << static_cast<int>(levels);
    }
  }
}

TEST(Verdict, ShortCallsTwiceAsSlowAreSlow) {
  for (Levels levels : {Levels::none, Levels::common, Levels::ours_alone}) {
    EXPECT_EQ(verdicts({1.5, levels}, 1.0)[Verdict::slow], kRepeats);
  }
}

TEST(Verdict, ShortCallsATenthSlowerAreNeverFast) {
  for (Levels levels : {Levels::none, Levels::common, Levels::ours_alone}) {
    EXPECT_EQ(verdicts({1.5, levels}, 0.1)[Verdict::fast], 0);
  }
}

TEST(Verdict, ASlowMachineIsNoSlowCall) {
  MeasuredTimes before{std::vector<double>(30, 10.0), 9.0}, now{std::vector<double>(30, 12.0), 10.8};
  EXPECT_EQ(judge(before, now, 0.05).verdict, Verdict::unsure);
  EXPECT_NEAR(judge(before, now, 0.05).change, 0.2, 1e-12);
  now.floor = std::nullopt;  // nothing to tell it by
  EXPECT_EQ(judge(before, now, 0.05).verdict, Verdict::slow);
}

TEST(Verdict, AFloorThatMovesAloneIsNoSlowCall) {
  MeasuredTimes before{std::vector<double>(30, 10.0), 9.0}, now{std::vector<double>(30, 10.0), 8.0};
  EXPECT_EQ(judge(before, now, 0.05).verdict, Verdict::unsure);
  EXPECT_EQ(judge(now, before, 0.05).verdict, Verdict::unsure);
}

TEST(Verdict, TheThresholdCounts) {
  MeasuredTimes before{std::vector<double>(30, 10.0), 9.0}, now{std::vector<double>(30, 11.0), 9.0};
  EXPECT_EQ(judge(before, now, 0.05).verdict, Verdict::slow);
  EXPECT_EQ(judge(now, before, 0.05).verdict, Verdict::fast);
  EXPECT_EQ(judge(before, now, 0.2).verdict, Verdict::same);
  EXPECT_EQ(judge(before, before, 0.05).verdict, Verdict::same);
}

TEST(Verdict, ScatteredRoundsAreUnsure) {
  MeasuredTimes before{{10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, 9.0};
  MeasuredTimes now{{8, 9, 10, 11, 12, 13, 14, 15, 16, 17}, 9.0};
  EXPECT_EQ(judge(before, now, 0.05).verdict, Verdict::unsure);
}

}  // namespace
}  // namespace kvrope::regress
