// The attention part of a model, made up at random: what each layer projects a token to, its rotary table and
// its caches. Layers do not feed each other, so that an error is seen where it is made.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine_step/scheduler.h"

namespace kvrope::engine {

struct ModelConfig {
  int64_t vocabulary = 61;
  int64_t q_heads = 4, kv_heads = 2, head_size = 16, rotary_dim = 12;
  std::vector<bool> layer_has_window = {false, true, false};
  bool is_neox = true;
  at::ScalarType dtype = at::kBFloat16;
  std::string kv_cache_dtype = "auto";  // or "fp8_e4m3", "fp8_e5m2": fp8 bytes with a scale per head
};

struct Layer {
  bool has_window;
  at::Tensor projection;              // (vocabulary, (QH + 2 KH) * D): q, k and v of a token side by side
  at::Tensor cos_sin;                 // (max_length, R) fp32
  at::Tensor key_cache, value_cache;  // (blocks, block_size, KH, D); of the window cache where has_window
  at::Tensor k_scale, v_scale;        // (KH,) fp32; undefined without fp8
};

struct Model {
  ModelConfig config;
  int64_t window;
  std::vector<Layer> layers;
  c10::Device device;
};

// Caches hold NaN until they are written. Throws std::invalid_argument where the sizes do not fit.
Model make_model(const ModelConfig& config, const SchedulerConfig& scheduler, int64_t seed,
                 c10::Device device);

}  // namespace kvrope::engine
