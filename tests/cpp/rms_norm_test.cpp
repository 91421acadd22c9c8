// The factor of RMSNorm as the host computes it: the nearest float, which is what the device's instruction
// gives.
#include "rms_norm.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace kvrope {
namespace {

// factor = b / 2^24 is the float nearest to 1 / sqrt(v), v = a / 2^23, if 1 / v lies between the squares of
// the midpoints around it: exact in integers.
bool is_nearest_reciprocal_root(uint64_t a, float factor) {
  const auto b = static_cast<uint64_t>(std::ldexp(factor, 24));
  const auto product = [&](uint64_t midpoint) {
    return static_cast<unsigned __int128>(a) * midpoint * midpoint;
  };
  const auto one = static_cast<unsigned __int128>(1) << (23 + 2 * 25);
  return product(2 * b - 1) < one && one < product(2 * b + 1);
}

// Every mantissa at an even and at an odd exponent; all others are these times a power of four.
TEST(RmsNorm, FactorIsRoundedOnce) {
  int64_t failures = 0;
  for (uint64_t a = (1u << 23) + 1; a < 1u << 25; a += a < 1u << 24 ? 1 : 2) {
    failures += !is_nearest_reciprocal_root(a, norm_factor(std::ldexp(static_cast<float>(a), -23), 1, 0));
  }
  EXPECT_EQ(failures, 0);
}

TEST(RmsNorm, FactorsOfExtremes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(norm_factor(1, 1, 0), 1);
  EXPECT_EQ(norm_factor(0, 1, 0), kInfinity);
  EXPECT_EQ(norm_factor(0x1p-148f, 1, 0), 0x1p74f) << "subnormal";
  EXPECT_EQ(norm_factor(kInfinity, 1, 0), 0);
  EXPECT_TRUE(std::isnan(norm_factor(std::nanf(""), 1, 0)));
  EXPECT_EQ(norm_factor(48, 0.25f, 4), 0.25f);
}

}  // namespace
}  // namespace kvrope
