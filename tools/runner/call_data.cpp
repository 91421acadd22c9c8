#include "runner/call_data.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "runner/random.h"
#include "runner/rope_table.h"

namespace kvrope::regress {
namespace {

float rounded(NumberFormat format, double value) {
  return static_cast<float>(decode(format, encode(format, value)));
}

// Zeros, subnormals, the ends of every format, ties of the fp8 formats, infinities and NaN.
const double kExtremes[] = {0.0,
                            -0.0,
                            0x1p-149,
                            -0x1p-133,
                            0x1p-126,
                            0x1p-24,
                            0x1p-14,
                            0x1p-9,
                            0x1p-10,
                            0x1p-11,
                            34.0,
                            36.0,
                            -38.0,
                            1.0625,
                            1.1875,
                            -1.125,
                            447.0,
                            448.0,
                            449.0,
                            464.0,
                            -465.0,
                            480.0,
                            1000.0,
                            57344.0,
                            61440.0,
                            61441.0,
                            -65504.0,
                            65520.0,
                            1e30,
                            -3.38e38,
                            3.4e38,
                            0x1.fffffep+127,
                            std::numeric_limits<double>::infinity(),
                            -std::numeric_limits<double>::infinity(),
                            std::numeric_limits<double>::quiet_NaN()};

double draw_extreme(Random& random) {
  constexpr int64_t kCount = std::size(kExtremes);
  int64_t choice = random.below(2 * kCount);  // every other value is an ordinary one
  return choice < kCount ? kExtremes[choice] : random.normal();
}

// Different for all of a thousand neighbours, so that a value in a wrong place shows.
constexpr size_t kRampLength = 1021;

std::vector<float> make_ramp(NumberFormat format) {
  std::vector<float> ramp;
  for (size_t i = 0; i < kRampLength; ++i) ramp.push_back(rounded(format, static_cast<double>(i) / 64 - 8));
  return ramp;
}

std::vector<float> make_rows(const CaseSpec& spec, const char* name, int64_t rows, int64_t heads,
                             int64_t dims) {
  using Values = InputsSpec::Values;
  std::vector<float> values(static_cast<size_t>(rows * heads * dims));
  Random random(spec.seed, name);
  auto first = static_cast<size_t>(random.below(kRampLength));
  constexpr int64_t kValuesWorthAThread = 1 << 15;
  auto count = static_cast<int64_t>(values.size());
  if (spec.inputs.values == Values::ramp) {
    std::vector<float> ramp = make_ramp(spec.dtype);
    at::parallel_for(0, count, kValuesWorthAThread, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        values[i] = ramp[(first + i) % kRampLength];
      }
    });
    return values;
  }
  if (spec.inputs.values == Values::extremes) {
    for (float& value : values) value = rounded(spec.dtype, draw_extreme(random));
    return values;
  }
  at::parallel_for(0, count, kValuesWorthAThread, [&](int64_t begin, int64_t end) {
    Random here = random;
    here.skip(static_cast<uint64_t>(begin) * Random::kDrawsOfNormal);
    for (int64_t i = begin; i < end; ++i) {
      values[static_cast<size_t>(i)] = rounded(spec.dtype, here.normal());
    }
  });
  return values;
}

void fill_row(std::vector<float>& values, int64_t row, int64_t row_size, float value) {
  auto start = values.begin() + row * row_size;
  if (row * row_size < static_cast<int64_t>(values.size())) std::fill(start, start + row_size, value);
}

void put_nan_in_padding(const CaseSpec& spec, CallData& data) {
  int64_t capacity = data.plan.num_blocks * spec.block_size;
  for (int64_t row = 0; row < std::max(spec.kv_rows(), spec.tokens()); ++row) {
    if (destination(data.plan, capacity, row).kind != Destination::Kind::padding) continue;
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    fill_row(data.q, row, spec.q_heads * spec.head_dim, kNan);
    fill_row(data.k, row, spec.kv_heads * spec.head_dim, kNan);
    fill_row(data.v, row, spec.kv_heads * spec.value_dim(), kNan);
  }
}

// About 1, plus_one or not.
std::vector<float> make_weight(const CaseSpec& spec, const char* name) {
  Random random(spec.seed, name);
  std::vector<float> values(static_cast<size_t>(spec.head_dim));
  double mean = spec.norm->plus_one ? 0 : 1;
  for (float& value : values) value = rounded(spec.weight_format(), mean + 0.25 * random.normal());
  return values;
}

std::optional<std::vector<float>> scale_values(const std::optional<Scale>& scale) {
  if (!scale) return std::nullopt;
  if (const double* number = std::get_if<double>(&*scale))
    return std::vector<float>{static_cast<float>(*number)};
  const auto& numbers = std::get<std::vector<double>>(*scale);
  return std::vector<float>(numbers.begin(), numbers.end());
}

}  // namespace

CallData make_call_data(const CaseSpec& spec) {
  CallData data;
  data.plan = plan_rows(spec);
  data.q = make_rows(spec, "q", spec.tokens(), spec.q_heads, spec.head_dim);
  data.k = make_rows(spec, "k", spec.kv_rows(), spec.kv_heads, spec.head_dim);
  data.v = make_rows(spec, "v", spec.kv_rows(), spec.kv_heads, spec.value_dim());
  if (spec.inputs.values == InputsSpec::Values::nan_padding) put_nan_in_padding(spec, data);
  for (double value : make_rope_table(spec, data.plan.table_rows)) {
    data.cos_sin.push_back(rounded(spec.table_dtype, value));
  }
  if (spec.norms_q()) data.q_weight = make_weight(spec, "q_weight");
  if (spec.norms_k()) data.k_weight = make_weight(spec, "k_weight");
  data.k_scale = scale_values(spec.k_scale);
  data.v_scale = scale_values(spec.v_scale);
  data.q_scale = scale_values(spec.q_scale);
  return data;
}

}  // namespace kvrope::regress
