#include "runner/number_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace kvrope::regress {
namespace {

struct FormatBits {
  int exponent, fraction;  // widths in bits
  int bias;
  bool has_infinity;  // false: the last exponent holds ordinary numbers, and NaN is all ones
};

FormatBits bits_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp16:
      return {5, 10, 15, true};
    case NumberFormat::bf16:
      return {8, 7, 127, true};
    case NumberFormat::fp32:
      return {8, 23, 127, true};
    case NumberFormat::fp8_e4m3:
      return {4, 3, 7, false};
    case NumberFormat::fp8_e5m2:
      return {5, 2, 15, true};
  }
  return {};
}

double decode_fields(const FormatBits& format, uint32_t bits) {
  uint32_t fraction = bits & ((1u << format.fraction) - 1);
  uint32_t exponent = (bits >> format.fraction) & ((1u << format.exponent) - 1);
  double sign = (bits >> (format.fraction + format.exponent)) & 1 ? -1.0 : 1.0;
  bool is_last_exponent = exponent == (1u << format.exponent) - 1;
  if (is_last_exponent && format.has_infinity) {
    return sign * (fraction == 0 ? std::numeric_limits<double>::infinity() : std::nan(""));
  }
  if (is_last_exponent && fraction == (1u << format.fraction) - 1) return std::nan("");
  int scale = 1 - format.bias - format.fraction;
  if (exponent == 0) return sign * std::ldexp(fraction, scale);
  return sign * std::ldexp(fraction + (1u << format.fraction), scale + static_cast<int>(exponent) - 1);
}

// The finite values of an fp8 format from zero up; the index is the code.
std::vector<double> positive_fp8_values(NumberFormat format) {
  std::vector<double> values;
  for (uint32_t code = 0; code < 0x80; ++code) {
    double value = decode_fields(bits_of(format), code);
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

uint32_t encode_fp8(NumberFormat format, double value) {
  static const std::vector<double> e4m3 = positive_fp8_values(NumberFormat::fp8_e4m3);
  static const std::vector<double> e5m2 = positive_fp8_values(NumberFormat::fp8_e5m2);
  const std::vector<double>& values = format == NumberFormat::fp8_e4m3 ? e4m3 : e5m2;
  uint32_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | 0x7f;
  double magnitude = std::fabs(value);
  if (magnitude >= values.back()) return sign | static_cast<uint32_t>(values.size() - 1);
  auto above =
      static_cast<uint32_t>(std::upper_bound(values.begin(), values.end(), magnitude) - values.begin());
  uint32_t below = above - 1;
  double to_below = magnitude - values[below], to_above = values[above] - magnitude;
  bool take_below = to_below < to_above || (to_below == to_above && below % 2 == 0);
  return sign | (take_below ? below : above);
}

uint32_t encode_16_bit(NumberFormat format, double value) {
  FormatBits fields = bits_of(format);
  uint32_t sign = std::signbit(value) ? 0x8000 : 0;
  uint32_t infinity = ((1u << fields.exponent) - 1) << fields.fraction;
  if (std::isnan(value)) return sign | infinity | (1u << (fields.fraction - 1));
  if (std::fabs(value) >= std::ldexp(1.0, fields.bias + 1)) return sign | infinity;
  // Codes of one sign are in the order of their values: the code is a count of spacings from the start of the
  // binade (of zero, for the subnormals). Rounding up to the next binade or to infinity is the same count one
  // higher.
  double spacing = ulp(format, value);
  auto count = static_cast<uint32_t>(std::nearbyint(std::fabs(value) / spacing));
  int smallest_exponent = 1 - fields.bias - fields.fraction;
  auto binade = static_cast<uint32_t>(std::ilogb(spacing) - smallest_exponent);
  return sign | std::min((binade << fields.fraction) + count, infinity);
}

std::vector<double> all_fp16_values() {
  std::vector<double> values(0x10000);
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    values[bits] = decode_fields(bits_of(NumberFormat::fp16), bits);
  return values;
}

}  // namespace

int bytes_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp16:
    case NumberFormat::bf16:
      return 2;
    case NumberFormat::fp32:
      return 4;
    case NumberFormat::fp8_e4m3:
    case NumberFormat::fp8_e5m2:
      return 1;
  }
  return 0;
}

bool is_fp8(NumberFormat format) {
  return bytes_of(format) == 1;
}

const char* name_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp16:
      return "fp16";
    case NumberFormat::bf16:
      return "bf16";
    case NumberFormat::fp32:
      return "fp32";
    case NumberFormat::fp8_e4m3:
      return "fp8_e4m3";
    case NumberFormat::fp8_e5m2:
      return "fp8_e5m2";
  }
  return "";
}

double decode(NumberFormat format, uint32_t bits) {
  if (format == NumberFormat::bf16) return std::bit_cast<float>(bits << 16);
  if (format == NumberFormat::fp32) return std::bit_cast<float>(bits);
  if (format == NumberFormat::fp16) {
    static const std::vector<double> values = all_fp16_values();
    return values[bits];
  }
  return decode_fields(bits_of(format), bits);
}

uint32_t encode(NumberFormat format, double value) {
  if (is_fp8(format)) return encode_fp8(format, value);
  if (format == NumberFormat::fp32)
    return std::bit_cast<uint32_t>(static_cast<float>(limit_to_fp32_range(value)));
  return encode_16_bit(format, value);
}

double ulp(NumberFormat format, double value) {
  FormatBits fields = bits_of(format);
  int lowest = 1 - fields.bias;
  int highest = fields.bias + (fields.has_infinity ? 0 : 1);
  int exponent = highest;
  if (value == 0) exponent = lowest;
  if (value != 0 && std::isfinite(value)) exponent = std::clamp(std::ilogb(value), lowest, highest);
  return std::ldexp(1.0, exponent - fields.fraction);
}

int fp8_ordinal(uint32_t code) {
  int magnitude = static_cast<int>(code & 0x7f);
  return code & 0x80 ? -magnitude : magnitude;
}

double limit_to_fp32_range(double value) {
  constexpr double kRoundsToInfinity = 0x1.ffffffp+127;  // half a spacing above the largest float
  if (std::fabs(value) < kRoundsToInfinity || std::isnan(value)) return value;
  return std::copysign(std::numeric_limits<double>::infinity(), value);
}

uint32_t load_bits(NumberFormat format, const uint8_t* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(bytes_of(format)));
  return bits;
}

void store_bits(NumberFormat format, uint32_t bits, uint8_t* to) {
  std::memcpy(to, &bits, static_cast<size_t>(bytes_of(format)));
}

}  // namespace kvrope::regress
