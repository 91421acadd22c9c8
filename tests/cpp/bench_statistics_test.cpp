// Medians and their intervals.
#include "runner/bench_statistics.h"

#include <gtest/gtest.h>

#include <numeric>

#include "runner/random.h"

namespace kvrope::regress {
namespace {

std::vector<double> one_to(size_t count) {
  std::vector<double> values(count);
  std::iota(values.rbegin(), values.rend(), 1);  // falling: the order must not matter
  return values;
}

TEST(BenchStatistics, QuantilesFallBetweenValues) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(quantile({0, 10}, 0.25), 2.5);
  EXPECT_EQ(quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(quantile({3, 1, 2}, 1), 3);
}

// The ranks are those of tables of the sign test: for 30 values and 95 % the 10th and the 21st, for 99 % the
// 8th and the 23rd.
TEST(BenchStatistics, IntervalsHaveTheRanksOfTheSignTest) {
  Interval at_95 = median_interval(one_to(30), 0.95);
  EXPECT_EQ(at_95.low, 10);
  EXPECT_EQ(at_95.high, 21);
  Interval at_99 = median_interval(one_to(30), 0.99);
  EXPECT_EQ(at_99.low, 8);
  EXPECT_EQ(at_99.high, 23);
  Interval of_ten = median_interval(one_to(10), 0.95);
  EXPECT_EQ(of_ten.low, 2);
  EXPECT_EQ(of_ten.high, 9);
}

TEST(BenchStatistics, ShortSeriesGiveTheirRange) {
  for (size_t count : {1u, 2u, 3u, 5u, 7u}) {
    Interval interval = median_interval(one_to(count), 0.99);
    EXPECT_EQ(interval.low, 1) << count;
    EXPECT_EQ(interval.high, count) << count;
  }
}

TEST(BenchStatistics, IntervalsHoldTheMedianAsOftenAsTheySay) {
  Random random(1, "intervals");
  int held = 0;
  constexpr int kRepeats = 4000;
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    std::vector<double> skewed;
    for (int i = 0; i < 30; ++i) skewed.push_back(std::exp(random.normal()));  // of median 1
    Interval interval = median_interval(skewed, 0.99);
    held += interval.low <= 1 && 1 <= interval.high;
  }
  EXPECT_GE(held, kRepeats * 0.985);
  EXPECT_LT(held, kRepeats);  // an interval of everything would be no interval
}

}  // namespace
}  // namespace kvrope::regress
