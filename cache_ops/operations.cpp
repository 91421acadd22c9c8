// The C++ calls: outputs are allocated where they are absent, then the operation runs.
#include <ATen/ops/empty.h>

#include "run_operation.h"

namespace kvrope {
namespace {

void allocate(std::optional<at::Tensor>& output, const at::Tensor& like) {
  if (like.defined() && !output) output = at::empty(like.sizes(), like.options());
}

}  // namespace

FusedOutputs fused_qk_rope_reshape_and_cache(const FusedArguments& arguments) {
  FusedArguments args = arguments;
  allocate(args.q_out, args.q);
  allocate(args.k_out, args.k);
  if (args.output_zeros) allocate(args.zeros_out, args.q);
  run_operation(args, Operation::fused);
  const int64_t row_size = args.q.size(1) * args.q.size(2);
  return {args.q_out->view({args.q.size(0), row_size}), *args.k_out, args.key_cache, args.value_cache,
          args.zeros_out};
}

RopeOutputs rope(const RopeArguments& arguments) {
  FusedArguments args = as_fused(arguments);
  allocate(args.q_out, args.q);
  allocate(args.k_out, args.k);
  run_operation(args, Operation::rope);
  return {*args.q_out, args.k_out};
}

void reshape_and_cache(const ReshapeAndCacheArguments& arguments) {
  run_operation(as_fused(arguments), Operation::reshape_and_cache);
}

FusedArguments as_fused(const RopeArguments& rope) {
  FusedArguments args;
  args.q = rope.q;
  if (rope.k) args.k = *rope.k;
  args.pos = rope.pos;
  args.cos_sin = rope.cos_sin;
  args.is_neox = rope.is_neox;
  args.offs = rope.offs;
  args.rotary_dim = rope.rotary_dim;
  args.rotary_dim_offset = rope.rotary_dim_offset;
  args.q_out = rope.q_out;
  args.k_out = rope.k_out;
  args.q_scale = rope.q_scale;
  args.mrope_section = rope.mrope_section;
  args.mrope_interleaved = rope.mrope_interleaved;
  args.q_weight = rope.q_weight;
  args.k_weight = rope.k_weight;
  args.eps = rope.eps;
  args.weight_plus_one = rope.weight_plus_one;
  return args;
}

FusedArguments as_fused(const ReshapeAndCacheArguments& cached) {
  FusedArguments args;
  args.k = cached.k;
  args.v = cached.v;
  args.key_cache = cached.key_cache;
  args.value_cache = cached.value_cache;
  args.slot_mapping = cached.slot_mapping;
  args.k_scale = cached.k_scale;
  args.v_scale = cached.v_scale;
  args.flash_layout = cached.flash_layout;
  args.apply_scale = cached.apply_scale;
  args.swa_slot_mapping = cached.swa_slot_mapping;
  args.kv_cache_dtype = cached.kv_cache_dtype;
  return args;
}

}  // namespace kvrope
