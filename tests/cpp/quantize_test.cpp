// Every code of every small format, every boundary between two neighbouring codes, and scaling, against a
// reference in double arithmetic: a table of all values, searched.
#include "quantize.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace kvrope {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Format {
  int exponent_bits, mantissa_bits;
  int largest_code;  // of a finite value
  bool has_infinity;
  bool saturates;
  int nan_code;

  int sign_bit() const { return 1 << (exponent_bits + mantissa_bits); }
  int num_codes() const { return 2 * sign_bit(); }
  int overflow_code() const { return saturates ? largest_code : largest_code + 1; }
};

constexpr Format kFp16 = {5, 10, 0x7bff, true, false, 0x7fff};
constexpr Format kBf16 = {8, 7, 0x7f7f, true, false, 0x7fff};
constexpr Format kE4m3 = {4, 3, 0x7e, false, true, 0x7f};
constexpr Format kE5m2 = {5, 2, 0x7b, true, true, 0x7f};

double finite_value(const Format& format, int magnitude) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  const int implicit_one = exponent > 0 ? 1 << format.mantissa_bits : 0;
  return std::ldexp(implicit_one + mantissa, std::max(exponent, 1) - bias - format.mantissa_bits);
}

// Rounds by search: boundaries[c] lies halfway between the values of codes c and c + 1.
class ReferenceRounding {
 public:
  explicit ReferenceRounding(const Format& format) : format_(format) {
    for (int code = 0; code <= format.largest_code; ++code) {
      const double step_up =
          finite_value(format, code + 1);  // past the largest: what would be the next value
      boundaries_.push_back((finite_value(format, code) + step_up) / 2);
    }
  }

  int code_of(double x) const {
    if (std::isnan(x)) return format_.nan_code;
    const double magnitude = std::abs(x);
    auto at = std::lower_bound(boundaries_.begin(), boundaries_.end(), magnitude);
    int code = static_cast<int>(at - boundaries_.begin());
    if (at != boundaries_.end() && *at == magnitude && code % 2 == 1) ++code;
    if (code > format_.largest_code) code = format_.overflow_code();
    return (std::signbit(x) ? format_.sign_bit() : 0) | code;
  }

  const std::vector<double>& boundaries() const { return boundaries_; }

 private:
  Format format_;
  std::vector<double> boundaries_;
};

template <typename T>
struct Traits;
template <>
struct Traits<fp16> {
  static constexpr Format format = kFp16;
  static float value_of(int code) { return to_float(fp16{static_cast<uint16_t>(code)}); }
};
template <>
struct Traits<bf16> {
  static constexpr Format format = kBf16;
  static float value_of(int code) { return to_float(bf16{static_cast<uint16_t>(code)}); }
};
template <>
struct Traits<fp8_e4m3> {
  static constexpr Format format = kE4m3;
  static float value_of(int code) { return E4m3Format::to_float<0x7f>(code); }
};
template <>
struct Traits<fp8_e5m2> {
  static constexpr Format format = kE5m2;
  static float value_of(int code) { return E5m2Format::to_float<0x7c>(code); }
};

template <typename T>
class QuantizeTest : public testing::Test {
 protected:
  static constexpr Format format = Traits<T>::format;
  static int code_of(float x) { return from_float<T>(x).bits; }
  static const ReferenceRounding& reference() {
    static const ReferenceRounding rounding(format);
    return rounding;
  }
  static void expect_code(float x, int expected) {
    ASSERT_EQ(code_of(x), expected) << "of " << x << " = 0x" << std::hex << bits_of(x);
    ASSERT_EQ(code_of(-x), expected | format.sign_bit()) << "of " << -x << " = 0x" << std::hex << bits_of(-x);
  }
};

using SmallTypes = testing::Types<fp16, bf16, fp8_e4m3, fp8_e5m2>;
TYPED_TEST_SUITE(QuantizeTest, SmallTypes);

TYPED_TEST(QuantizeTest, EveryCodeHasItsValue) {
  const Format format = this->format;
  for (int code = 0; code < format.num_codes(); ++code) {
    const int magnitude = code & (format.sign_bit() - 1);
    const float value = Traits<TypeParam>::value_of(code);
    ASSERT_EQ(std::signbit(value), code >= format.sign_bit()) << "code " << code;
    if (magnitude <= format.largest_code) {
      ASSERT_EQ(std::abs(value), finite_value(format, magnitude)) << "code " << code;
    } else if (format.has_infinity && magnitude == format.largest_code + 1) {
      ASSERT_TRUE(std::isinf(value)) << "code " << code;
    } else {
      ASSERT_TRUE(std::isnan(value)) << "code " << code;
    }
  }
}

TYPED_TEST(QuantizeTest, EveryCodeSurvivesARoundTrip) {
  const Format format = this->format;
  for (int code = 0; code < format.num_codes(); ++code) {
    const int sign = code & format.sign_bit(), magnitude = code - sign;
    const bool is_infinity = format.has_infinity && magnitude == format.largest_code + 1;
    const int expected = magnitude <= format.largest_code ? code
                         : is_infinity                    ? sign | format.overflow_code()
                                                          : format.nan_code;
    ASSERT_EQ(this->code_of(Traits<TypeParam>::value_of(code)), expected) << "code " << code;
  }
}

TYPED_TEST(QuantizeTest, BoundariesRoundToEvenAndTheirNeighboursToTheNearest) {
  const Format format = this->format;
  for (int code = 0; code < format.largest_code; ++code) {
    const double boundary = this->reference().boundaries()[code];
    const float tie = static_cast<float>(boundary);
    ASSERT_EQ(tie, boundary) << "the boundary above code " << code << " is not an fp32 value";
    this->expect_code(tie, code + code % 2);
    this->expect_code(std::nextafter(tie, 0.0f), code);
    this->expect_code(std::nextafter(tie, kInf), code + 1);
  }
}

TYPED_TEST(QuantizeTest, OverflowStartsHalfAStepAboveTheLargestValue) {
  const Format format = this->format;
  const float limit = static_cast<float>(this->reference().boundaries().back());
  this->expect_code(std::nextafter(limit, 0.0f), format.largest_code);
  for (const float x :
       {limit, std::nextafter(limit, kInf), 3.4e38f, std::numeric_limits<float>::max(), kInf}) {
    if (x >= limit) this->expect_code(x, format.overflow_code());
  }
}

TYPED_TEST(QuantizeTest, EveryNanBecomesOneCode) {
  for (const uint32_t sign : {0u, 0x80000000u}) {
    for (const uint32_t payload :
         {1u, 2u, 0x1000u, 0x2000u, 0x8000u, 0x10000u, 0x3fffffu, 0x400000u, 0x7fffffu}) {
      const float nan = float_of(sign | 0x7f800000u | payload);
      ASSERT_EQ(this->code_of(nan), this->format.nan_code) << std::hex << bits_of(nan);
    }
  }
}

TYPED_TEST(QuantizeTest, ZerosAndTinyValuesKeepTheirSign) {
  this->expect_code(0.0f, 0);
  this->expect_code(std::numeric_limits<float>::denorm_min(), 0);
  const float half_of_smallest = static_cast<float>(this->reference().boundaries()[0]);
  this->expect_code(half_of_smallest, 0);
  this->expect_code(std::nextafter(half_of_smallest, 1.0f), 1);
}

TYPED_TEST(QuantizeTest, SweepOverAllFloats) {
  constexpr uint32_t kStride = 1021;  // a prime: all low bits occur with all exponents
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += kStride) {
    const float x = float_of(static_cast<uint32_t>(bits));
    ASSERT_EQ(this->code_of(x), this->reference().code_of(x)) << std::hex << bits;
  }
}

TEST(Quantize, KnownCodes) {
  EXPECT_EQ(from_float<fp16>(1.0f).bits, 0x3c00);
  EXPECT_EQ(from_float<fp16>(0.1f).bits, 0x2e66);
  EXPECT_EQ(from_float<fp16>(-65504.0f).bits, 0xfbff);
  EXPECT_EQ(from_float<fp16>(65519.996f).bits, 0x7bff);
  EXPECT_EQ(from_float<fp16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(from_float<fp16>(5.9604645e-8f).bits, 0x0001);
  EXPECT_EQ(from_float<bf16>(1.0f).bits, 0x3f80);
  EXPECT_EQ(from_float<bf16>(-0.1f).bits, 0xbdcd);
  EXPECT_EQ(from_float<bf16>(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(from_float<fp8_e4m3>(1.0f).bits, 0x38);
  EXPECT_EQ(from_float<fp8_e4m3>(-0.001953125f).bits, 0x81);  // -2^-9, the smallest
  for (const float x : {447.0f, 448.0f, 449.0f, 464.0f, 465.0f, 479.9f, 480.0f, 1000.0f, 1e30f, kInf}) {
    EXPECT_EQ(from_float<fp8_e4m3>(x).bits, 0x7e) << x;
    EXPECT_EQ(from_float<fp8_e4m3>(-x).bits, 0xfe) << -x;
  }
  EXPECT_EQ(from_float<fp8_e5m2>(1.0f).bits, 0x3c);
  EXPECT_EQ(from_float<fp8_e5m2>(1.52587890625e-5f).bits, 0x01);  // 2^-16, the smallest
  for (const float x : {57344.0f, 57345.0f, 61439.0f, 61440.0f, 65536.0f, 1e30f, kInf}) {
    EXPECT_EQ(from_float<fp8_e5m2>(x).bits, 0x7b) << x;
    EXPECT_EQ(from_float<fp8_e5m2>(-x).bits, 0xfb) << -x;
  }
}

TEST(Quantize, Fp32KeepsItsBitsExceptNan) {
  for (const uint32_t bits : {0u, 0x80000000u, 1u, 0x3f800000u, 0x7f7fffffu, 0x7f800000u, 0xff800000u}) {
    EXPECT_EQ(bits_of(from_float<float>(float_of(bits))), bits);
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fc00000u, 0xffc00000u, 0xffffffffu}) {
    EXPECT_EQ(bits_of(from_float<float>(float_of(nan))), 0x7fffffffu);
  }
}

std::vector<float> bf16_values_up_to_8() {
  std::vector<float> values;
  for (int code = 0; code <= 0x4100; ++code) {
    const float x = to_float(bf16{static_cast<uint16_t>(code)});
    values.push_back(x);
    values.push_back(-x);
  }
  return values;
}

constexpr float kScales[] = {3.0f, 0.1f, 1.0f / 7.0f, 1.0f, 0.5f, -0.7f, 0.0123f, 448.0f, 1e-3f};

// The two ways are told apart: one product with the rounded reciprocal, one quotient.
TEST(Scale, ReciprocalAndDivisionAreEachOneIeeeOperation) {
  int num_different = 0;
  for (const float scale : kScales) {
    const float reciprocal = static_cast<float>(1.0 / static_cast<double>(scale));
    for (const float x : bf16_values_up_to_8()) {
      const float product = static_cast<float>(static_cast<double>(x) * reciprocal);
      const float quotient = static_cast<float>(static_cast<double>(x) / scale);
      ASSERT_EQ(bits_of(Scale(scale, false).apply(x)), bits_of(product)) << x << " by " << scale;
      ASSERT_EQ(bits_of(Scale(scale, true).apply(x)), bits_of(quotient)) << x << " by " << scale;
      num_different += product != quotient;
    }
  }
  EXPECT_GT(num_different, 1000);
}

// Codes in the order of their values, so that neighbours differ by one.
int rank_of(const Format& format, int code) {
  const int magnitude = code & (format.sign_bit() - 1);
  return code & format.sign_bit() ? -magnitude : magnitude;
}

TYPED_TEST(QuantizeTest, ScaledCodesAreAtMostOneFromTheExactQuotient) {
  const std::vector<float> values = bf16_values_up_to_8();
  for (const float scale : kScales) {
    int num_exact = 0;
    for (const float x : values) {
      const int exact = this->reference().code_of(static_cast<double>(x) / scale);
      for (const bool divide : {false, true}) {
        const int code = this->code_of(Scale(scale, divide).apply(x));
        ASSERT_LE(std::abs(rank_of(this->format, code) - rank_of(this->format, exact)), 1)
            << x << " by " << scale << (divide ? " divided" : " times the reciprocal");
        num_exact += code == exact;
      }
    }
    EXPECT_GT(num_exact, 2 * 0.9 * values.size()) << "scale " << scale;
  }
}

TYPED_TEST(QuantizeTest, PowerOfTwoScalesAreExact) {
  for (const float scale : {0.25f, 1.0f, 8.0f, -2.0f}) {
    for (const float x : bf16_values_up_to_8()) {
      const int exact = this->reference().code_of(static_cast<double>(x) / scale);
      ASSERT_EQ(this->code_of(Scale(scale, false).apply(x)), exact) << x << " by " << scale;
      ASSERT_EQ(this->code_of(Scale(scale, true).apply(x)), exact) << x << " by " << scale;
    }
  }
}

TYPED_TEST(QuantizeTest, ZeroScale) {
  for (const bool divide : {false, true}) {
    const Scale scale(0.0f, divide);
    this->expect_code(scale.apply(2.0f), this->format.overflow_code());
    EXPECT_EQ(this->code_of(scale.apply(0.0f)), this->format.nan_code);
    EXPECT_EQ(this->code_of(Scale(-0.0f, divide).apply(2.0f)),
              this->format.overflow_code() | this->format.sign_bit());
  }
}

TYPED_TEST(QuantizeTest, NanAndInfiniteScales) {
  for (const bool divide : {false, true}) {
    for (const float x : {0.0f, 1.0f, -8.0f, kInf}) {
      EXPECT_EQ(this->code_of(Scale(std::nanf(""), divide).apply(x)), this->format.nan_code) << x;
    }
    EXPECT_EQ(this->code_of(Scale(kInf, divide).apply(5.0f)), 0);
    EXPECT_EQ(this->code_of(Scale(kInf, divide).apply(kInf)), this->format.nan_code);
  }
}

// 1 / 1e-45 is not an fp32 value: the reciprocal is infinite where the quotient need not be.
TEST(Scale, SmallestSubnormalScale) {
  EXPECT_EQ(Scale(1e-45f, false).reciprocal, kInf);
  EXPECT_EQ(Scale(1e-45f, false).apply(1e-40f), kInf);
  EXPECT_TRUE(std::isnan(Scale(1e-45f, false).apply(0.0f)));
  EXPECT_EQ(Scale(1e-45f, true).apply(3 * std::numeric_limits<float>::denorm_min()), 3.0f);
  EXPECT_EQ(Scale(1e-45f, true).apply(0.0f), 0.0f);
  EXPECT_EQ(Scale(1e-45f, true).apply(8.0f), kInf);
}

}  // namespace
}  // namespace kvrope
