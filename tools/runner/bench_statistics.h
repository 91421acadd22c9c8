// What a series of measured times says: its median, and how far that is known.
#pragma once

#include <vector>

namespace kvrope::regress {

// Between two values, where the fraction falls between them. The series is not empty.
double quantile(std::vector<double> values, double fraction);
double median(const std::vector<double>& values);

struct Interval {
  double low, high;
};

// An interval that holds the median of what the series was drawn from with this confidence. It is made of two
// of the values in order (those between which the median falls in all but 1 - confidence of binomial draws),
// so that it asks nothing of the distribution: times are skewed, have outliers, and at times two levels. A
// series too short for the confidence gives its whole range.
Interval median_interval(std::vector<double> values, double confidence);

}  // namespace kvrope::regress
