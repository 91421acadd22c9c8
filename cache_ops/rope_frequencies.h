// The frequency of each pair under a model's scaling rule, and the factor of cosines and sines.
#pragma once

#include <ATen/core/Tensor.h>

#include "cos_sin_table.h"

namespace kvrope {

struct RopeFrequencies {
  at::Tensor inv_freq;  // (rotary_dim / 2,) fp32 on the CPU
  double attention_factor = 1;
};

// Throws as build_cos_sin does.
RopeFrequencies rope_frequencies(int64_t rotary_dim, int64_t max_position, double base,
                                 const RopeScaling& scaling);

}  // namespace kvrope
