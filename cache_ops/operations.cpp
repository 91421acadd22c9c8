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
  return {rope, {}, rope.q, rope.k.value_or(at::Tensor()), false, std::nullopt, false};
}

FusedArguments as_fused(const ReshapeAndCacheArguments& cached) {
  return {{}, cached, at::Tensor(), cached.k, false, std::nullopt, false};
}

}  // namespace kvrope
