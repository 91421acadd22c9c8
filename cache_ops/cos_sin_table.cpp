#include "cos_sin_table.h"

#include <ATen/ATen.h>

#include "rope_frequencies.h"
#include "tensor_matcher.h"
#include "text.h"

namespace kvrope {
namespace {

void check_sizes(int64_t rotary_dim, int64_t max_position, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(rotary_dim >= 2 && rotary_dim % 2 == 0,
                    text("build_cos_sin: rotary_dim: expected a positive even number, got ", rotary_dim));
  TORCH_CHECK_VALUE(max_position >= 1,
                    text("build_cos_sin: max_position: expected a positive number, got ", max_position));
  TORCH_CHECK_TYPE(
      dtype == at::kFloat || dtype == at::kHalf || dtype == at::kBFloat16,
      text("build_cos_sin: dtype: expected float32 or float16 or bfloat16, got ", dtype_name(dtype)));
}

// One column for each element in place of one for each pair.
at::Tensor widen(const at::Tensor& pairs, bool is_neox) {
  return is_neox ? at::cat({pairs, pairs}, 1) : pairs.repeat_interleave(2, 1);
}

}  // namespace

at::Tensor build_cos_sin(int64_t rotary_dim, int64_t max_position, double base,
                         const std::optional<RopeScaling>& scaling, const CosSinOptions& options) {
  check_sizes(rotary_dim, max_position, options.dtype);
  const RopeFrequencies frequencies =
      rope_frequencies(rotary_dim, max_position, base, scaling.value_or(RopeScaling()));
  const at::Tensor positions = at::arange(max_position, at::TensorOptions(at::kLong)).to(at::kFloat);
  const at::Tensor angles = positions.unsqueeze(1).mul(frequencies.inv_freq);
  at::Tensor cosines = angles.cos().mul_(frequencies.attention_factor);
  at::Tensor sines = angles.sin().mul_(frequencies.attention_factor);
  if (options.full_width) {
    cosines = widen(cosines, options.is_neox);
    sines = widen(sines, options.is_neox);
  }
  return at::cat({cosines, sines}, 1).to(options.dtype).to(options.device);
}

}  // namespace kvrope
