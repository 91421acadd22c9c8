#include "runner/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrope::regress {
namespace {

double factor_of(const RopeScaling& scaling) {
  if (scaling.type == RopeScaling::Type::longrope && !scaling.factor)
    return *scaling.max_position_embeddings / *scaling.original_max_position_embeddings;
  return scaling.factor.value_or(1);
}

// Each frequency unchanged, divided by the factor, or between the two, by how often it turns within the
// original context length. Where low and high are one (Llama 4), no frequency lies between.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  double turns = *scaling.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  if (turns >= scaling.high_freq_factor) return frequency;
  if (turns <= scaling.low_freq_factor) return frequency / factor_of(scaling);
  double smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / factor_of(scaling) + smooth * frequency;
}

// base^(-2 pair / rotary_dim)
double plain_frequency(int64_t pair, int64_t rotary_dim, double base) {
  return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
}

// The base grows by how far the table (`rows`) exceeds the original context length; the slowest pair, whose
// exponent is (dims - 2) / dims, then turns `stretch` times more slowly.
double dynamic_frequency(int64_t pair, int64_t rotary_dim, int64_t rows, const TableSpec& table) {
  double original = *table.scaling.original_max_position_embeddings;
  double excess = std::max(static_cast<double>(rows) / original, 1.0) - 1;
  double stretch = 1 + factor_of(table.scaling) * excess;
  if (rotary_dim <= 2) return plain_frequency(pair, rotary_dim, table.base);  // one pair, whatever the base
  double slowed = 2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim - 2);
  return plain_frequency(pair, rotary_dim, table.base) * std::pow(stretch, -slowed);
}

double longrope_divisor(int64_t pair, int64_t rows, const RopeScaling& scaling) {
  bool is_long = static_cast<double>(rows) > *scaling.original_max_position_embeddings;
  const std::vector<double>& factors = is_long ? scaling.long_factor : scaling.short_factor;
  if (factors.empty()) return 1;  // rotary_dim 1
  // A table wider than the rotated dims has pairs beyond the list; the operation refuses it.
  return factors[std::min(static_cast<size_t>(pair), factors.size() - 1)];
}

// The first pairs turn, as if the whole head did; the others stand still.
bool proportional_turns(int64_t pair, int64_t rotary_dim, const RopeScaling& scaling) {
  double pairs = std::floor(scaling.partial_rotary_factor * static_cast<double>(rotary_dim) / 2);
  return static_cast<double>(pair) < pairs;
}

// The pair (a fraction) whose frequency turns so often within the original context length.
double yarn_pair(double turns, double base, double rotary_dim, double original_length) {
  return rotary_dim * std::log(original_length / (turns * 2 * std::numbers::pi)) / (2 * std::log(base));
}

double yarn_frequency(double frequency, int64_t pair, int64_t rotary_dim, double base,
                      const RopeScaling& scaling) {
  double original = *scaling.original_max_position_embeddings;
  double dims = static_cast<double>(rotary_dim);
  double low = yarn_pair(scaling.beta_fast, base, dims, original);
  double high = yarn_pair(scaling.beta_slow, base, dims, original);
  if (scaling.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  double interpolated = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return interpolated * frequency / factor_of(scaling) + (1 - interpolated) * frequency;
}

double frequency_of(int64_t pair, int64_t rotary_dim, int64_t rows, const TableSpec& table) {
  double frequency = plain_frequency(pair, rotary_dim, table.base);
  switch (table.scaling.type) {
    case RopeScaling::Type::none:
      break;
    case RopeScaling::Type::linear:
      return frequency / factor_of(table.scaling);
    case RopeScaling::Type::dynamic:
      return dynamic_frequency(pair, rotary_dim, rows, table);
    case RopeScaling::Type::llama3:
      return llama3_frequency(frequency, table.scaling);
    case RopeScaling::Type::yarn:
      return yarn_frequency(frequency, pair, rotary_dim, table.base, table.scaling);
    case RopeScaling::Type::longrope:
      return frequency / longrope_divisor(pair, rows, table.scaling);
    case RopeScaling::Type::proportional:
      return proportional_turns(pair, rotary_dim, table.scaling) ? frequency / factor_of(table.scaling) : 0;
  }
  return frequency;
}

// Of cosines and sines.
double magnitude_of(const RopeScaling& scaling) {
  bool is_yarn = scaling.type == RopeScaling::Type::yarn;
  bool is_longrope = scaling.type == RopeScaling::Type::longrope;
  if (!is_yarn && !is_longrope) return 1;
  if (scaling.attention_factor) return *scaling.attention_factor;
  double growth = std::log(factor_of(scaling));
  if (growth <= 0) return 1;
  if (is_longrope) return std::sqrt(1 + growth / std::log(*scaling.original_max_position_embeddings));
  if (scaling.mscale == 0 || scaling.mscale_all_dim == 0) return 1 + 0.1 * growth;
  return (1 + 0.1 * scaling.mscale * growth) / (1 + 0.1 * scaling.mscale_all_dim * growth);
}

}  // namespace

std::vector<double> make_rope_table(const CaseSpec& spec, int64_t rows) {
  int64_t rotary_dim = spec.rotated_dims();
  int64_t width = spec.table_width();
  bool is_full = width == 2 * rotary_dim;
  int64_t half = width / 2;  // columns of cosines; any other width is one the operation refuses
  std::vector<double> frequencies(static_cast<size_t>(half));
  std::vector<double> shifts(static_cast<size_t>(half), 0);
  for (int64_t column = 0; column < half; ++column) {
    int64_t pair = column;
    if (is_full) {
      int64_t pairs = std::max<int64_t>(rotary_dim / 2, 1);
      pair = spec.is_neox ? column % pairs : column / 2;
      bool is_second = spec.is_neox ? column >= pairs : column % 2 == 1;
      // Models repeat the columns for the second element of a pair. Here they differ, as they may: a kernel
      // that reads the wrong ones shows.
      shifts[static_cast<size_t>(column)] = is_second ? 0.25 : 0;
    }
    frequencies[static_cast<size_t>(column)] = frequency_of(pair, rotary_dim, rows, spec.table);
  }
  double magnitude = magnitude_of(spec.table.scaling);
  std::vector<double> values(static_cast<size_t>(rows * width), 0);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < half; ++column) {
      size_t i = static_cast<size_t>(column);
      double angle = static_cast<double>(row) * frequencies[i] + shifts[i];
      values[static_cast<size_t>(row * width + column)] = magnitude * std::cos(angle);
      values[static_cast<size_t>(row * width + half + column)] = magnitude * std::sin(angle);
    }
  }
  return values;
}

}  // namespace kvrope::regress
