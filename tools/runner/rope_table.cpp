#include "runner/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kvrope::regress {
namespace {

// Each frequency unchanged, divided by the factor, or between the two, by how often it turns within the
// original context length.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  double turns = *scaling.original_max_position_embeddings * frequency / (2 * std::numbers::pi);
  double smooth = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  smooth = std::clamp(smooth, 0.0, 1.0);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
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
  return interpolated * frequency / scaling.factor + (1 - interpolated) * frequency;
}

double frequency_of(int64_t pair, int64_t rotary_dim, const TableSpec& table) {
  double frequency = std::pow(table.base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotary_dim));
  switch (table.scaling.type) {
    case RopeScaling::Type::none:
      break;
    case RopeScaling::Type::linear:
      return frequency / table.scaling.factor;
    case RopeScaling::Type::llama3:
      return llama3_frequency(frequency, table.scaling);
    case RopeScaling::Type::yarn:
      return yarn_frequency(frequency, pair, rotary_dim, table.base, table.scaling);
  }
  return frequency;
}

double magnitude_of(const RopeScaling& scaling) {
  if (scaling.type != RopeScaling::Type::yarn) return 1;
  return scaling.attention_factor.value_or(0.1 * std::log(scaling.factor) + 1);
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
    frequencies[static_cast<size_t>(column)] = frequency_of(pair, rotary_dim, spec.table);
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
