#include "engine_step/reference.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>

namespace kvrope::engine {
namespace {

// fma(a, x, y) of fp32 tensors: the product is exact in double precision.
at::Tensor fma(const at::Tensor& a, const at::Tensor& x, const at::Tensor& y) {
  return (a.to(at::kDouble) * x.to(at::kDouble) + y.to(at::kDouble)).to(at::kFloat);
}

// Rotates the first R dims of x (L, heads, D), row i at position i. Gives fp32.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos_sin, bool is_neox) {
  const int64_t half = cos_sin.size(1) / 2;
  const at::Tensor rows = cos_sin.narrow(0, 0, x.size(0)).unsqueeze(1);
  const at::Tensor cos = rows.narrow(2, 0, half), sin = rows.narrow(2, half, half);
  const at::Tensor values = x.to(at::kFloat), rotated = values.narrow(2, 0, 2 * half);
  const at::Tensor a = is_neox ? rotated.narrow(2, 0, half) : rotated.slice(2, 0, c10::nullopt, 2);
  const at::Tensor b = is_neox ? rotated.narrow(2, half, half) : rotated.slice(2, 1, c10::nullopt, 2);
  const at::Tensor first = fma(a, cos, -(b * sin)), second = fma(b, cos, a * sin);
  const at::Tensor pairs = is_neox ? at::cat({first, second}, 2) : at::stack({first, second}, 3).flatten(2);
  return at::cat({pairs, values.narrow(2, 2 * half, x.size(2) - 2 * half)}, 2);
}

// What a cache gives back of fp32 rows (L, KH, D).
at::Tensor through_cache(const at::Tensor& rows, const at::Tensor& scale, const ModelConfig& config) {
  if (config.kv_cache_dtype == "auto") return rows.to(config.dtype).to(at::kFloat);
  const bool is_e4m3 = config.kv_cache_dtype == "fp8_e4m3";
  const double largest = is_e4m3 ? 448 : 57344;
  const at::Tensor head_scale = scale.view({-1, 1});
  const at::Tensor codes = (rows * head_scale.reciprocal()).clamp(-largest, largest);
  return codes.to(is_e4m3 ? at::kFloat8_e4m3fn : at::kFloat8_e5m2).to(at::kFloat) * head_scale;
}

// q (L, QH, D), keys and values (L, KH, D).
at::Tensor attend_causally(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& values,
                           int64_t window) {
  const int64_t length = q.size(0), group = q.size(1) / keys.size(1);
  const auto heads_first = [](const at::Tensor& x) { return x.to(at::kDouble).transpose(0, 1); };
  const at::Tensor all_keys = heads_first(keys).repeat_interleave(group, 0);
  const at::Tensor all_values = heads_first(values).repeat_interleave(group, 0);
  const at::Tensor to = at::arange(length, at::kLong), from = to.view({-1, 1});
  at::Tensor is_hidden = to.gt(from);
  if (window > 0) is_hidden = is_hidden.logical_or(to.le(from - window));
  const at::Tensor scores =
      heads_first(q).matmul(all_keys.transpose(1, 2)) / std::sqrt(static_cast<double>(q.size(2)));
  const at::Tensor weights =
      at::softmax(scores.masked_fill(is_hidden, -std::numeric_limits<double>::infinity()), -1);
  return weights.matmul(all_values).transpose(0, 1);
}

}  // namespace

Reference::Reference(const Model& model) : model_(model) {
  model_.device = at::kCPU;
  for (Layer& layer : model_.layers) {
    layer.projection = layer.projection.cpu();
    layer.cos_sin = layer.cos_sin.cpu();
    layer.key_cache = layer.value_cache = at::Tensor();
    if (layer.k_scale.defined()) layer.k_scale = layer.k_scale.cpu();
    if (layer.v_scale.defined()) layer.v_scale = layer.v_scale.cpu();
  }
}

std::vector<float> Reference::outputs(const std::vector<int64_t>& tokens) const {
  const ModelConfig& config = model_.config;
  std::vector<float> all;
  for (const Layer& layer : model_.layers) {
    const auto heads = layer.projection.index_select(0, at::tensor(tokens, at::kLong))
                           .unflatten(1, {-1, config.head_size})
                           .split_with_sizes({config.q_heads, config.kv_heads, config.kv_heads}, 1);
    const at::Tensor q = rotate(heads[0], layer.cos_sin, config.is_neox).to(config.dtype);
    const at::Tensor k =
        through_cache(rotate(heads[1], layer.cos_sin, config.is_neox), layer.k_scale, config);
    const at::Tensor v = through_cache(heads[2].to(at::kFloat), layer.v_scale, config);
    const at::Tensor outputs =
        attend_causally(q, k, v, layer.has_window ? model_.window : 0).to(at::kFloat).contiguous();
    const float* data = outputs.const_data_ptr<float>();
    all.insert(all.end(), data, data + outputs.numel());
  }
  return all;
}

}  // namespace kvrope::engine
