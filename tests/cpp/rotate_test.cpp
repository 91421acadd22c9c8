// The arithmetic of one pair, against an emulated fused multiply-add and against extended precision, and the
// pairs and table columns of every style and width.
#include "rotate.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quantize.cuh"

namespace kvrope {
namespace {

struct Pair {
  float a, b, cos, sin;
};

std::vector<Pair> random_pairs(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> element(0.0f, 3.0f);
  std::uniform_real_distribution<double> angle(-3.2, 3.2);
  std::uniform_int_distribution<int> exponent(-12, 12);
  std::vector<Pair> pairs;
  for (int i = 0; i < count; ++i) {
    const double theta = angle(random);
    pairs.push_back({std::ldexp(element(random), exponent(random)), element(random),
                     static_cast<float>(std::cos(theta)), static_cast<float>(std::sin(theta))});
  }
  return pairs;
}

// x y + z rounded once, without a fused instruction: the sum of two doubles is rounded to odd, which makes
// the second rounding, to fp32, innocuous.
float emulated_fma(float x, float y, float z) {
  const double product = static_cast<double>(x) * y;  // exact
  double sum = product + z;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (z - back);
  int64_t bits;
  std::memcpy(&bits, &sum, sizeof bits);
  if (error != 0 && bits % 2 == 0) sum = std::nextafter(sum, error > 0 ? INFINITY : -INFINITY);
  return static_cast<float>(sum);
}

float rounded_product(float x, float y) {
  return static_cast<float>(static_cast<double>(x) * y);
}

TEST(Rotate, OneRoundedProductInsideOneFusedMultiplyAdd) {
  int num_unlike_unfused = 0, num_unlike_other_order = 0;
  for (const auto& [a, b, cos, sin] : random_pairs(200000, 1)) {
    const float first = emulated_fma(a, cos, -rounded_product(b, sin));
    const float second = emulated_fma(b, cos, rounded_product(a, sin));
    ASSERT_EQ(bits_of(rotate_first(a, b, cos, sin)), bits_of(first))
        << a << ' ' << b << ' ' << cos << ' ' << sin;
    ASSERT_EQ(bits_of(rotate_second(a, b, cos, sin)), bits_of(second))
        << a << ' ' << b << ' ' << cos << ' ' << sin;
    num_unlike_unfused += first != rounded_product(a, cos) - rounded_product(b, sin);
    num_unlike_other_order += first != emulated_fma(-b, sin, rounded_product(a, cos));
  }
  EXPECT_GT(num_unlike_unfused, 1000);  // the inputs can tell the orders apart
  EXPECT_GT(num_unlike_other_order, 1000);
}

struct Exact {
  long double first, second, first_slack, second_slack;
};

Exact exact_rotation(const Pair& pair) {
  const long double a = pair.a, b = pair.b, cos = pair.cos, sin = pair.sin;
  return {a * cos - b * sin, b * cos + a * sin, 2e-6L * (std::abs(a * cos) + std::abs(b * sin)),
          2e-6L * (std::abs(b * cos) + std::abs(a * sin))};
}

TEST(Rotate, Fp32StaysWithinTheTolerance) {
  for (const Pair& pair : random_pairs(200000, 2)) {
    const Exact exact = exact_rotation(pair);
    const float first = rotate_first(pair.a, pair.b, pair.cos, pair.sin);
    const float second = rotate_second(pair.a, pair.b, pair.cos, pair.sin);
    ASSERT_LE(std::abs(first - exact.first), exact.first_slack) << pair.a << ' ' << pair.b;
    ASSERT_LE(std::abs(second - exact.second), exact.second_slack) << pair.a << ' ' << pair.b;
  }
}

// The distance between neighbouring values around x of a format with `mantissa_bits` and smallest step
// 2^min_exponent.
long double ulp(float x, int mantissa_bits, int min_exponent) {
  const int exponent = x == 0 ? min_exponent : std::ilogb(x) - mantissa_bits;
  return std::ldexp(1.0L, std::max(exponent, min_exponent));
}

template <typename T>
void expect_within_one_ulp(uint32_t seed, int mantissa_bits, int min_exponent) {
  for (Pair pair : random_pairs(200000, seed)) {
    pair.a = to_float(from_float<T>(pair.a));
    pair.b = to_float(from_float<T>(pair.b));
    const Exact exact = exact_rotation(pair);
    const float first = to_float(from_float<T>(rotate_first(pair.a, pair.b, pair.cos, pair.sin)));
    const float second = to_float(from_float<T>(rotate_second(pair.a, pair.b, pair.cos, pair.sin)));
    ASSERT_LE(std::abs(first - exact.first), ulp(first, mantissa_bits, min_exponent) + exact.first_slack);
    ASSERT_LE(std::abs(second - exact.second), ulp(second, mantissa_bits, min_exponent) + exact.second_slack);
  }
}

TEST(Rotate, Bf16StaysWithinOneUlp) {
  expect_within_one_ulp<bf16>(3, 7, -133);
}
TEST(Rotate, Fp16StaysWithinOneUlp) {
  expect_within_one_ulp<fp16>(4, 10, -24);
}

TEST(Rotate, QuarterTurnsAreExact) {
  for (const auto& [a, b, unused_cos, unused_sin] : random_pairs(1000, 5)) {
    EXPECT_EQ(rotate_first(a, b, 1, 0), a);
    EXPECT_EQ(rotate_second(a, b, 1, 0), b);
    EXPECT_EQ(rotate_first(a, b, 0, 1), -b);
    EXPECT_EQ(rotate_second(a, b, 0, 1), a);
    EXPECT_EQ(rotate_first(a, b, -1, 0), -a);
    EXPECT_EQ(rotate_second(a, b, -1, 0), -b);
    EXPECT_EQ(rotate_first(a, b, 0, -1), b);
    EXPECT_EQ(rotate_second(a, b, 0, -1), -a);
  }
}

TEST(Rotate, NanAndInfinityReachTheResult) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  EXPECT_TRUE(std::isnan(rotate_first(nan, 1, 0.5f, 0.5f)));
  EXPECT_TRUE(std::isnan(rotate_second(1, nan, 0.5f, 0.5f)));
  EXPECT_EQ(rotate_first(inf, 1, 0.5f, 0.5f), inf);
  EXPECT_EQ(rotate_second(-inf, 1, 0.5f, 0.5f), -inf);
  EXPECT_TRUE(std::isnan(rotate_first(inf, inf, 0.5f, 0.5f)));
  EXPECT_TRUE(std::isnan(rotate_first(1, inf, 1, 0)));  // infinity times zero
}

// Products that would overflow or vanish on their own behave as fp32's.
TEST(Rotate, ExtremeMagnitudes) {
  const float max = std::numeric_limits<float>::max(), tiny = std::numeric_limits<float>::denorm_min();
  EXPECT_TRUE(std::isinf(rotate_second(max, max, 0.9f, 0.9f)));
  EXPECT_EQ(rotate_first(max, max, 0.5f, 0.5f), 0.0f);
  EXPECT_EQ(rotate_first(tiny, 0, 1, 0), tiny);
  EXPECT_EQ(rotate_second(tiny, tiny, 1, 1), 2 * tiny);
}

// Pair i of a half-width row takes column i and R/2 + i; element j of a full-width row takes j and R
// + j.
class RotaryStyleTest : public testing::TestWithParam<bool> {};

TEST_P(RotaryStyleTest, PairsPartitionTheRotatedElements) {
  const RotaryStyle style = {GetParam(), false};
  for (int rotary_dim = 2; rotary_dim <= 512; rotary_dim += 2) {
    std::vector<int> uses(rotary_dim, 0);
    for (int i = 0; i < rotary_dim / 2; ++i) {
      const int a = style.first_of_pair(i), b = style.second_of_pair(i, rotary_dim);
      ASSERT_EQ(a, style.is_neox ? i : 2 * i) << "R " << rotary_dim;
      ASSERT_EQ(b, style.is_neox ? i + rotary_dim / 2 : 2 * i + 1) << "R " << rotary_dim;
      ++uses.at(a);
      ++uses.at(b);
    }
    ASSERT_EQ(uses, std::vector<int>(rotary_dim, 1)) << "R " << rotary_dim;
  }
}

TEST_P(RotaryStyleTest, HalfWidthColumnsAreOnePerPair) {
  const RotaryStyle style = {GetParam(), false};
  for (int rotary_dim = 2; rotary_dim <= 512; rotary_dim += 2) {
    ASSERT_EQ(style.sine_offset(rotary_dim), rotary_dim / 2);
    for (int i = 0; i < rotary_dim / 2; ++i) {
      ASSERT_EQ(style.cosine_column(style.first_of_pair(i), rotary_dim), i) << "R " << rotary_dim;
      ASSERT_EQ(style.cosine_column(style.second_of_pair(i, rotary_dim), rotary_dim), i)
          << "R " << rotary_dim;
    }
  }
}

TEST_P(RotaryStyleTest, FullWidthColumnsAreOnePerElement) {
  const RotaryStyle style = {GetParam(), true};
  for (int rotary_dim = 2; rotary_dim <= 512; rotary_dim += 2) {
    ASSERT_EQ(style.sine_offset(rotary_dim), rotary_dim);
    for (int j = 0; j < rotary_dim; ++j)
      ASSERT_EQ(style.cosine_column(j, rotary_dim), j) << "R " << rotary_dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Styles, RotaryStyleTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "NeoX" : "GptJ"; });

}  // namespace
}  // namespace kvrope
