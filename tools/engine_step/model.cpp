#include "engine_step/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "cos_sin_table.h"
#include "runner/random.h"

namespace kvrope::engine {
namespace {

at::Tensor normal_values(std::vector<int64_t> shape, regress::Random& random) {
  at::Tensor values = at::empty(shape, at::kFloat);
  float* data = values.mutable_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<float>(random.normal());
  return values;
}

// Near the largest value that fits: a few elements saturate.
at::Tensor head_scales(const ModelConfig& config, regress::Random& random) {
  const double largest = config.kv_cache_dtype == "fp8_e4m3" ? 448 : 57344;
  std::vector<float> scales;
  for (int64_t head = 0; head < config.kv_heads; ++head) {
    scales.push_back(static_cast<float>((2.5 + 2 * random.uniform()) / largest));
  }
  return at::tensor(scales);
}

at::Tensor empty_cache(const ModelConfig& config, int64_t num_blocks, int64_t block_size) {
  const std::vector<int64_t> shape = {num_blocks, block_size, config.kv_heads, config.head_size};
  if (config.kv_cache_dtype == "auto") {
    return at::full(shape, std::numeric_limits<double>::quiet_NaN(), config.dtype);
  }
  return at::full(shape, 0x7f, at::kByte);  // NaN in either fp8
}

}  // namespace

Model make_model(const ModelConfig& config, const SchedulerConfig& scheduler, int64_t seed,
                 c10::Device device) {
  if (config.q_heads % config.kv_heads != 0 || config.head_size % 2 != 0 || config.rotary_dim % 2 != 0 ||
      config.rotary_dim > config.head_size) {
    throw std::invalid_argument(
        "expected kv-heads that divide q-heads, an even head-size and an even rotary-dim up to it");
  }
  regress::Random random(seed, "model");
  Model model{config, scheduler.window, {}, device};
  const int64_t row_size = (config.q_heads + 2 * config.kv_heads) * config.head_size;
  for (const bool has_window : config.layer_has_window) {
    const int64_t num_blocks = has_window ? scheduler.num_window_blocks : scheduler.num_blocks;
    Layer layer{.has_window = has_window,
                .projection = normal_values({config.vocabulary, row_size}, random).to(device, config.dtype),
                .cos_sin = build_cos_sin(config.rotary_dim, scheduler.max_length, has_window ? 1e4 : 5e5,
                                         std::nullopt, {.device = device}),
                .key_cache = empty_cache(config, num_blocks, scheduler.block_size).to(device),
                .value_cache = empty_cache(config, num_blocks, scheduler.block_size).to(device),
                .k_scale = {},
                .v_scale = {}};
    if (config.kv_cache_dtype != "auto") {
      layer.k_scale = head_scales(config, random).to(device);
      layer.v_scale = head_scales(config, random).to(device);
    }
    model.layers.push_back(std::move(layer));
  }
  return model;
}

}  // namespace kvrope::engine
