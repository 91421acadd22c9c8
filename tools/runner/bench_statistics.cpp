#include "runner/bench_statistics.h"

#include <algorithm>
#include <cmath>

namespace kvrope::regress {

double quantile(std::vector<double> values, double fraction) {
  std::sort(values.begin(), values.end());
  double place = fraction * static_cast<double>(values.size() - 1);
  auto below = static_cast<size_t>(place);
  size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double median(const std::vector<double>& values) {
  return quantile(values, 0.5);
}

Interval median_interval(std::vector<double> values, double confidence) {
  std::sort(values.begin(), values.end());
  auto count = static_cast<double>(values.size());
  // Largest rank below which the median falls in at most half of 1 - confidence of the draws.
  size_t rank = 0;
  double term = std::pow(0.5, count), sum = term;  // of the binomial distribution, from 0 on
  while (rank + 1 < values.size() / 2 &&
         2 * (sum + term * (count - static_cast<double>(rank)) / static_cast<double>(rank + 1)) <=
             1 - confidence) {
    term *= (count - static_cast<double>(rank)) / static_cast<double>(rank + 1);
    sum += term;
    ++rank;
  }
  return {values[rank], values[values.size() - 1 - rank]};
}

}  // namespace kvrope::regress
