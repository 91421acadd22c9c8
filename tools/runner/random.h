// Random numbers that are the same on every machine: splitmix64, one stream for each use of a case's seed, so
// that a change in one use leaves the others alone.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>
#include <utility>
#include <vector>

namespace kvrope::regress {

class Random {
 public:
  Random(int64_t seed, std::string_view use) : state_(static_cast<uint64_t>(seed) * kStep) {
    for (char letter : use) state_ = (state_ ^ static_cast<unsigned char>(letter)) * 0x100000001b3u;
  }

  uint64_t bits() {
    uint64_t z = state_ += kStep;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  void skip(uint64_t draws) { state_ += draws * kStep; }

  // 0 .. limit - 1; limit is positive and small beside 2^64.
  int64_t below(int64_t limit) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(limit)); }

  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)

  static constexpr uint64_t kDrawsOfNormal = 2;
  double normal() {  // Box and Muller
    double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  template <class Value>
  void shuffle(std::vector<Value>& values) {
    for (size_t i = values.size(); i > 1; --i) {
      std::swap(values[i - 1], values[static_cast<size_t>(below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  static constexpr uint64_t kStep = 0x9e3779b97f4a7c15u;
  uint64_t state_;
};

}  // namespace kvrope::regress
