#include "engine_step/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>

namespace kvrope::engine {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// (T, KH, tokens, D) of all tokens that the tables reach.
at::Tensor gather(const at::Tensor& cache, const at::Tensor& scale, const at::Tensor& tables,
                  const ModelConfig& config) {
  const at::Tensor blocks = cache.index_select(0, tables.flatten());
  return cached_values(blocks, scale, config)
      .view({tables.size(0), tables.size(1) * cache.size(1), cache.size(2), cache.size(3)})
      .transpose(1, 2);
}

}  // namespace

at::Tensor cached_values(const at::Tensor& cache, const at::Tensor& scale, const ModelConfig& config) {
  if (config.kv_cache_dtype == "auto") return cache.to(at::kFloat);
  const auto fp8 = config.kv_cache_dtype == "fp8_e4m3" ? at::kFloat8_e4m3fn : at::kFloat8_e5m2;
  return cache.view(fp8).to(at::kFloat) * scale.view({-1, 1});
}

at::Tensor window_tables(const at::Tensor& tables, const at::Tensor& window_table, int64_t block_size) {
  const at::Tensor slots = window_table.index_select(0, tables.flatten() * block_size).view(tables.sizes());
  return slots.floor_divide(block_size).clamp_min(0);
}

at::Tensor attend(const at::Tensor& q, const Layer& layer, const ModelConfig& config,
                  const at::Tensor& tables, const at::Tensor& positions, int64_t window) {
  const int64_t num_rows = q.size(0), kv_heads = config.kv_heads, head_size = config.head_size;
  const int64_t num_tokens = tables.size(1) * layer.key_cache.size(1);
  const at::Tensor token = at::arange(num_tokens, positions.options());
  const at::Tensor position = positions.view({-1, 1});
  at::Tensor is_hidden = token.gt(position);
  if (window > 0) is_hidden = is_hidden.logical_or(token.le(position - window));

  const at::Tensor keys = gather(layer.key_cache, layer.k_scale, tables, config);
  // Slots that nobody has written may hold NaN, which a weight of zero does not take away.
  const at::Tensor values = gather(layer.value_cache, layer.v_scale, tables, config)
                                .masked_fill(is_hidden.view({num_rows, 1, num_tokens, 1}), 0);
  const at::Tensor queries = q.to(at::kFloat).view({num_rows, kv_heads, -1, head_size});
  const at::Tensor scores = queries.matmul(keys.transpose(2, 3)) / std::sqrt(static_cast<double>(head_size));
  const at::Tensor seen = scores.masked_fill(is_hidden.view({num_rows, 1, 1, num_tokens}), kMinusInfinity);
  const at::Tensor weights = at::softmax(seen, -1);
  return weights.matmul(values).view({num_rows, config.q_heads, head_size});
}

}  // namespace kvrope::engine
