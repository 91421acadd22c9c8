#include "engine_step/forward.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "arguments.h"
#include "engine_step/attention.h"

namespace kvrope::engine {
namespace {

void copy_front(const std::vector<int64_t>& from, at::Tensor to) {
  const auto count = static_cast<int64_t>(from.size());
  to.flatten()
      .narrow(0, 0, count)
      .copy_(at::from_blob(const_cast<int64_t*>(from.data()), {count}, at::kLong));
}

at::Tensor forward_layer(const Model& model, const Layer& layer, const StepInputs& inputs, int64_t size) {
  const ModelConfig& config = model.config;
  const at::Tensor qkv = layer.projection.index_select(0, inputs.tokens(size));
  const auto heads = qkv.unflatten(1, {-1, config.head_size})
                         .split_with_sizes({config.q_heads, config.kv_heads, config.kv_heads}, 1);

  FusedArguments args;
  args.q = heads[0];  // views of the fused projection
  args.k = heads[1];
  args.v = heads[2];
  args.q_out = args.q;  // rotated in place
  args.k_out = args.k;
  args.key_cache = layer.key_cache;
  args.value_cache = layer.value_cache;
  args.slot_mapping = inputs.slots(size);  // of the full cache, in every layer
  if (layer.has_window) args.swa_slot_mapping = inputs.window_table();
  args.pos = inputs.positions(size);
  args.cos_sin = layer.cos_sin;
  args.rotary_dim = config.rotary_dim;
  args.is_neox = config.is_neox;
  if (config.kv_cache_dtype != "auto") {
    args.kv_cache_dtype = config.kv_cache_dtype;
    args.k_scale = layer.k_scale;
    args.v_scale = layer.v_scale;
  }
  fused_qk_rope_reshape_and_cache(args);

  const int64_t block_size = layer.key_cache.size(1);
  const at::Tensor tables = layer.has_window
                                ? window_tables(inputs.tables(size), inputs.window_table(), block_size)
                                : inputs.tables(size);
  return attend(args.q, layer, config, tables, inputs.positions(size), layer.has_window ? model.window : 0);
}

}  // namespace

StepInputs::StepInputs(const SchedulerConfig& config, c10::Device device) {
  const int64_t rows = padded_size(config.token_budget);
  const auto longs = at::TensorOptions().dtype(at::kLong).device(device);
  tokens_ = at::zeros({rows}, longs);
  positions_ = at::zeros({rows}, longs);
  slots_ = at::zeros({rows}, longs);
  tables_ = at::zeros({rows, config.max_blocks()}, longs);
  window_table_ = at::zeros({config.num_slots()}, longs);
}

void StepInputs::copy_from(const StepRows& rows) {
  copy_front(rows.tokens, tokens_);
  copy_front(rows.positions, positions_);
  copy_front(rows.slots, slots_);
  copy_front(rows.tables, tables_);
  copy_front(rows.window_table, window_table_);
}

at::Tensor forward(const Model& model, const StepInputs& inputs, int64_t size) {
  std::vector<at::Tensor> outputs;
  for (const Layer& layer : model.layers) outputs.push_back(forward_layer(model, layer, inputs, size));
  return at::stack(outputs);
}

}  // namespace kvrope::engine
