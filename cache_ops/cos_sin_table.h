// Tables of cosines and sines for the operation's cos_sin argument, with the scaling rules that models use.
// Link kvrope::cache_ops.
//
//   kvrope::RopeScaling scaling;
//   scaling.rope_type = "llama3", scaling.factor = 8, scaling.original_max_position_embeddings = 8192;
//   scaling.low_freq_factor = 1, scaling.high_freq_factor = 4;
//   kvrope::CosSinOptions options;
//   options.device = at::kCUDA;
//   at::Tensor cos_sin = kvrope::build_cos_sin(128, 131072, 500000, scaling, options);
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvrope {

// The keys of a Hugging Face config's rope_scaling or rope_parameters, by their names there. What a type does
// not use is not looked at; an absent key that it needs is an error.
struct RopeScaling {
  std::string rope_type = "default";  // linear, dynamic, yarn, llama3, longrope, proportional
  std::optional<double> rope_theta;   // in place of base
  // linear, dynamic, yarn, llama3, longrope; proportional (1 when absent). longrope without it:
  // max_position_embeddings / original_max_position_embeddings.
  std::optional<double> factor;
  // The length that the model was trained with: dynamic, yarn, llama3, longrope.
  std::optional<double> original_max_position_embeddings;
  std::optional<double> max_position_embeddings;            // longrope without a factor
  std::optional<double> attention_factor;                   // yarn, longrope: multiplies cosines and sines
  std::optional<double> mscale, mscale_all_dim;             // yarn: the attention factor when both are given
  std::optional<double> beta_fast, beta_slow;               // yarn: 32 and 1
  std::optional<bool> truncate;                             // yarn: true
  std::optional<double> low_freq_factor, high_freq_factor;  // llama3
  std::optional<std::vector<double>> short_factor, long_factor;  // longrope: rotary_dim / 2 values each
  std::optional<double> partial_rotary_factor;  // proportional (1); for the others rotary_dim says it
};

struct CosSinOptions {
  bool full_width = false;            // a column for each element rather than for each pair
  bool is_neox = true;                // order of the columns of a full width: see build_cos_sin
  at::ScalarType dtype = at::kFloat;  // or kHalf, kBFloat16
  c10::Device device = c10::Device(at::kCPU);
};

// (max_position, W): row p holds the cosines of p * theta_i, then the sines; theta_i = base^(-2i /
// rotary_dim), changed by `scaling`. W = rotary_dim, one column a pair; with full_width W = 2 * rotary_dim,
// one column an element: pair i's in columns i and i + rotary_dim / 2 (is_neox) or 2i and 2i + 1. Computed in
// fp32 on the CPU, in the order of transformers 5.17's functions, and then moved: the same bits on every
// device. Where a rule depends on the length of the sequence (dynamic, longrope), that is max_position.
// Throws c10::ValueError or c10::TypeError (dtype) that names the argument or key, what it got and what fits.
at::Tensor build_cos_sin(int64_t rotary_dim, int64_t max_position, double base = 10000.0,
                         const std::optional<RopeScaling>& scaling = std::nullopt,
                         const CosSinOptions& options = {});

}  // namespace kvrope
