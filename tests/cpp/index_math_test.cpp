// Division by a multiplication and a shift, products in both widths, and the one comparison of an index.
#include "index_math.h"

#include <gtest/gtest.h>

#include <climits>
#include <random>
#include <vector>

namespace kvrope {
namespace {

constexpr uint32_t kMost = INT32_MAX;  // what Divisor is made for

void expect_quotients_around(const Divisor<uint32_t>& divisor, uint32_t d, uint64_t multiple) {
  for (const int64_t near : {-2, -1, 0, 1, 2}) {
    const int64_t n = static_cast<int64_t>(multiple * d) + near;
    if (n < 0 || n > kMost) continue;
    ASSERT_EQ(divisor.quotient(static_cast<uint32_t>(n)), n / d) << n << " / " << d;
  }
}

TEST(Divisor, SmallDivisorsAndAllDividendsThatMatter) {
  for (uint32_t d = 1; d <= 2048; ++d) {
    const Divisor<uint32_t> divisor(d);
    for (uint32_t n = 0; n < 2 * d; ++n) ASSERT_EQ(divisor.quotient(n), n / d) << n << " / " << d;
    for (uint64_t bit = 0; bit < 31; ++bit) expect_quotients_around(divisor, d, uint64_t{1} << bit);
    expect_quotients_around(divisor, d, kMost / d);  // the last multiples
    expect_quotients_around(divisor, d, kMost / d - 1);
    if (HasFatalFailure()) return;
  }
}

TEST(Divisor, PowersOfTwoAndTheirNeighbours) {
  for (int bit = 1; bit < 31; ++bit) {
    for (const int near : {-1, 0, 1}) {
      const uint32_t d = (1u << bit) + near;
      const Divisor<uint32_t> divisor(d);
      for (uint64_t multiple = 0; multiple <= 64; ++multiple) expect_quotients_around(divisor, d, multiple);
      for (uint64_t back = 0; back <= 4; ++back) expect_quotients_around(divisor, d, kMost / d - back);
      ASSERT_EQ(divisor.quotient(kMost), kMost / d);
    }
  }
  EXPECT_EQ(Divisor<uint32_t>(kMost).quotient(kMost), 1u);
  EXPECT_EQ(Divisor<uint32_t>(kMost).quotient(kMost - 1), 0u);
}

TEST(Divisor, RandomDivisorsAndDividends) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    const uint32_t d = 1 + (random() & kMost) % (1u << (1 + random() % 30));
    const Divisor<uint32_t> divisor(d);
    for (int i = 0; i < 20; ++i) {
      const uint32_t n = random() & kMost;
      ASSERT_EQ(divisor.quotient(n), n / d) << n << " / " << d;
    }
    expect_quotients_around(divisor, d, (random() & kMost) / d);
  }
}

TEST(Divisor, DefaultDividesByOne) {
  for (const uint32_t n : {0u, 1u, 12345u, kMost}) EXPECT_EQ(Divisor<uint32_t>().quotient(n), n);
}

TEST(Divisor, SixtyFourBits) {
  EXPECT_EQ(Divisor<int64_t>{}.quotient(INT64_MAX), INT64_MAX);
  EXPECT_EQ(Divisor<int64_t>{int64_t{1} << 33}.quotient((int64_t{5} << 33) + 7), 5);
}

TEST(Product, HasSixtyFourBitsInBothWidths) {
  const std::vector<uint32_t> factors = {0, 1, 7, 65536, (1u << 30) + 1, kMost};
  for (const uint32_t index : factors) {
    for (const uint32_t stride : factors) {
      ASSERT_EQ(product(index, stride), int64_t{index} * int64_t{stride});
      ASSERT_EQ(product(int64_t{index}, int64_t{stride}), int64_t{index} * int64_t{stride});
    }
  }
  EXPECT_EQ(product(int64_t{1} << 40, int64_t{1} << 20), int64_t{1} << 60);
}

TEST(IsIndex, IsBothComparisons) {
  const std::vector<int64_t> values = {INT64_MIN, INT32_MIN, -1, 0, 1, 41, 42, 43, INT32_MAX, INT64_MAX};
  for (const int64_t value : values) {
    for (const int64_t limit : {int64_t{0}, int64_t{1}, int64_t{42}, int64_t{INT32_MAX}, INT64_MAX}) {
      const bool expected = value >= 0 && value < limit;
      EXPECT_EQ(is_index(value, limit), expected) << value << " below " << limit;
      if (limit > kMost) continue;
      EXPECT_EQ(is_index(value, static_cast<uint32_t>(limit)), expected) << value << " below " << limit;
    }
  }
}

}  // namespace
}  // namespace kvrope
