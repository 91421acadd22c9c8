// Each rule with torch's own operations and in transformers' order, for the sake of the same bits: a Python
// `number / tensor` is reciprocal() times the number, Python floats are doubles, tensors are fp32.
#include "rope_frequencies.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "text.h"

namespace kvrope {
namespace {

using Key = std::optional<double> RopeScaling::*;
using Factors = std::optional<std::vector<double>> RopeScaling::*;

// One call: the pairs and the keys of its scaling.
struct Rule {
  int64_t rotary_dim, max_position;
  double base;
  const char* base_name;  // the argument or the key that gave it
  const RopeScaling& scaling;

  std::string prefix(const char* key) const {
    return text("build_cos_sin: scaling: ", key, " of rope_type '", scaling.rope_type, "': ");
  }

  double positive(const char* key, double value) const {
    TORCH_CHECK_VALUE(std::isfinite(value) && value > 0,
                      text(prefix(key), "expected a positive number, got ", value));
    return value;
  }
  std::optional<double> if_given(const char* key, Key field) const {
    if (scaling.*field) return positive(key, *(scaling.*field));
    return std::nullopt;
  }
  double needed(const char* key, Key field) const {
    TORCH_CHECK_VALUE((scaling.*field).has_value(),
                      text(prefix(key), "expected a positive number, got none"));
    return positive(key, *(scaling.*field));
  }
  // As Python's `value or fallback`: zero counts as absent.
  double or_else(const char* key, Key field, double fallback) const {
    return (scaling.*field).value_or(0) == 0 ? fallback : needed(key, field);
  }

  // base^(2i / of_dim) of the first `pairs` pairs.
  at::Tensor powers(double from_base, int64_t pairs, int64_t of_dim) const {
    const at::Tensor exponents =
        at::arange(0, 2 * pairs, 2, at::TensorOptions(at::kLong)).to(at::kFloat).div(of_dim);
    return at::pow(at::Scalar(from_base), exponents);
  }
  at::Tensor default_frequencies(double from_base) const {
    return powers(from_base, rotary_dim / 2, rotary_dim).reciprocal();
  }
};

RopeFrequencies linear(const Rule& rule) {
  const double factor = rule.needed("factor", &RopeScaling::factor);
  return {rule.default_frequencies(rule.base).div_(factor)};
}

// NTK scaling of the base by how far the table exceeds the model's own length.
RopeFrequencies dynamic(const Rule& rule) {
  const double factor = rule.needed("factor", &RopeScaling::factor);
  const double limit =
      rule.needed("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings);
  TORCH_CHECK_VALUE(rule.rotary_dim > 2, text("build_cos_sin: rotary_dim: expected at least 4 with rope_type "
                                              "'dynamic', got ",
                                              rule.rotary_dim));
  const auto dims = static_cast<double>(rule.rotary_dim);
  const double length = std::max(static_cast<double>(rule.max_position), limit);
  const double stretch = factor * length / limit - (factor - 1);
  return {rule.default_frequencies(rule.base * std::pow(stretch, dims / (dims - 2)))};
}

double yarn_magnitude(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double yarn_attention_factor(const Rule& rule, double factor) {
  if (const auto given = rule.if_given("attention_factor", &RopeScaling::attention_factor)) return *given;
  const double mscale = rule.or_else("mscale", &RopeScaling::mscale, 0);
  const double all_dim = rule.or_else("mscale_all_dim", &RopeScaling::mscale_all_dim, 0);
  if (mscale == 0 || all_dim == 0) return yarn_magnitude(factor, 1);
  return yarn_magnitude(factor, mscale) / yarn_magnitude(factor, all_dim);
}

// 0 for the pairs that keep their frequency, 1 for those divided by the factor, a ramp between.
at::Tensor yarn_ramp(const Rule& rule, double original_length) {
  const auto dims = static_cast<double>(rule.rotary_dim);
  const auto pair_that_turns = [&](double times) {
    return dims * std::log(original_length / (times * 2 * std::numbers::pi)) / (2 * std::log(rule.base));
  };
  double low = pair_that_turns(rule.or_else("beta_fast", &RopeScaling::beta_fast, 32));
  double high = pair_that_turns(rule.or_else("beta_slow", &RopeScaling::beta_slow, 1));
  if (rule.scaling.truncate.value_or(true)) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, dims - 1);
  if (low == high) high += 0.001;  // as there: no division by zero
  return at::arange(rule.rotary_dim / 2, at::TensorOptions(at::kFloat)).sub(low).div(high - low).clamp(0, 1);
}

RopeFrequencies yarn(const Rule& rule) {
  const double factor = rule.needed("factor", &RopeScaling::factor);
  const double original =
      rule.needed("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings);
  TORCH_CHECK_VALUE(rule.base > 1, text("build_cos_sin: ", rule.base_name,
                                        ": expected more than 1 with rope_type 'yarn', got ", rule.base));
  const at::Tensor powers = rule.powers(rule.base, rule.rotary_dim / 2, rule.rotary_dim);
  const at::Tensor extrapolation = powers.reciprocal(), interpolation = powers.mul(factor).reciprocal();
  const at::Tensor kept = at::rsub(yarn_ramp(rule, original), 1);
  return {interpolation.mul(at::rsub(kept, 1)).add(extrapolation.mul(kept)),
          yarn_attention_factor(rule, factor)};
}

double longrope_factor(const Rule& rule, double original) {
  if (const auto factor = rule.if_given("factor", &RopeScaling::factor)) return *factor;
  TORCH_CHECK_VALUE(rule.scaling.max_position_embeddings.has_value(),
                    text(rule.prefix("factor"),
                         "expected a positive number, or max_position_embeddings to divide "
                         "by original_max_position_embeddings, got neither"));
  return rule.needed("max_position_embeddings", &RopeScaling::max_position_embeddings) / original;
}

double longrope_attention_factor(const Rule& rule, double original) {
  const double factor = longrope_factor(rule, original);
  if (const auto given = rule.if_given("attention_factor", &RopeScaling::attention_factor)) return *given;
  if (factor <= 1) return 1;
  TORCH_CHECK_VALUE(original > 1, text(rule.prefix("original_max_position_embeddings"),
                                       "expected more than 1, got ", original));
  return std::sqrt(1 + std::log(factor) / std::log(original));
}

at::Tensor longrope_factors(const Rule& rule, const char* key, Factors field) {
  const size_t pairs = static_cast<size_t>(rule.rotary_dim) / 2;
  const std::optional<std::vector<double>>& factors = rule.scaling.*field;
  const std::string fits = text("expected ", static_cast<int64_t>(pairs), " numbers, rotary_dim / 2, got ");
  TORCH_CHECK_VALUE(factors.has_value(), text(rule.prefix(key), fits, "none"));
  TORCH_CHECK_VALUE(factors->size() == pairs,
                    text(rule.prefix(key), fits, static_cast<int64_t>(factors->size())));
  for (const double factor : *factors) rule.positive(key, factor);
  return at::tensor(*factors, at::TensorOptions(at::kFloat));
}

RopeFrequencies longrope(const Rule& rule) {
  const double original =
      rule.needed("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings);
  const at::Tensor long_factors = longrope_factors(rule, "long_factor", &RopeScaling::long_factor);
  const at::Tensor short_factors = longrope_factors(rule, "short_factor", &RopeScaling::short_factor);
  const bool is_long = static_cast<double>(rule.max_position) > original;
  const at::Tensor powers = rule.powers(rule.base, rule.rotary_dim / 2, rule.rotary_dim);
  return {(is_long ? long_factors : short_factors).mul(powers).reciprocal(),
          longrope_attention_factor(rule, original)};
}

RopeFrequencies llama3(const Rule& rule) {
  const double factor = rule.needed("factor", &RopeScaling::factor);
  const double low = rule.needed("low_freq_factor", &RopeScaling::low_freq_factor);
  const double high = rule.needed("high_freq_factor", &RopeScaling::high_freq_factor);
  const double original =
      rule.needed("original_max_position_embeddings", &RopeScaling::original_max_position_embeddings);
  TORCH_CHECK_VALUE(high >= low, text(rule.prefix("high_freq_factor"), "expected at least low_freq_factor ",
                                      low, ", got ", high));
  const at::Tensor frequencies = rule.default_frequencies(rule.base);
  const at::Tensor wavelengths = frequencies.reciprocal().mul(2 * std::numbers::pi);
  const at::Tensor is_low = wavelengths.gt(original / low), is_high = wavelengths.lt(original / high);
  const at::Tensor scaled = at::where(is_low, frequencies.div(factor), frequencies);
  if (high == low) return {scaled};  // Llama 4: none lies between
  const at::Tensor smooth = wavelengths.reciprocal().mul(original).sub(low).div(high - low);
  const at::Tensor smoothed = at::rsub(smooth, 1).mul(scaled).div(factor).add(smooth.mul(scaled));
  return {at::where(is_low.logical_or(is_high), scaled, smoothed)};
}

// The first pairs rotate with the frequencies of the whole head, the others not at all.
RopeFrequencies proportional(const Rule& rule) {
  const double factor = rule.if_given("factor", &RopeScaling::factor).value_or(1);
  const double part = rule.if_given("partial_rotary_factor", &RopeScaling::partial_rotary_factor).value_or(1);
  TORCH_CHECK_VALUE(part <= 1, text(rule.prefix("partial_rotary_factor"), "expected at most 1, got ", part));
  const auto pairs = static_cast<int64_t>(std::floor(part * static_cast<double>(rule.rotary_dim) / 2));
  const at::Tensor rotated = rule.powers(rule.base, pairs, rule.rotary_dim).reciprocal();
  const at::Tensor still = at::zeros({rule.rotary_dim / 2 - pairs}, at::TensorOptions(at::kFloat));
  return {at::cat({rotated, still}).div_(factor)};
}

}  // namespace

RopeFrequencies rope_frequencies(int64_t rotary_dim, int64_t max_position, double base,
                                 const RopeScaling& scaling) {
  const char* base_name = scaling.rope_theta ? "scaling: rope_theta" : "base";
  base = scaling.rope_theta.value_or(base);
  TORCH_CHECK_VALUE(std::isfinite(base) && base > 0,
                    text("build_cos_sin: ", base_name, ": expected a positive number, got ", base));
  const Rule rule = {rotary_dim, max_position, base, base_name, scaling};
  if (scaling.rope_type == "default") return {rule.default_frequencies(base)};
  if (scaling.rope_type == "linear") return linear(rule);
  if (scaling.rope_type == "dynamic") return dynamic(rule);
  if (scaling.rope_type == "yarn") return yarn(rule);
  if (scaling.rope_type == "llama3") return llama3(rule);
  if (scaling.rope_type == "longrope") return longrope(rule);
  if (scaling.rope_type == "proportional") return proportional(rule);
  TORCH_CHECK_VALUE(
      false, text("build_cos_sin: scaling: rope_type: expected default, linear, dynamic, yarn, llama3, "
                  "longrope or proportional, got '",
                  scaling.rope_type, "'"));
}

}  // namespace kvrope
