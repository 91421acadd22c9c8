#include "fused.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include "check_arguments.h"
#include "cpu_kernel.h"
#include "make_params.h"
#include "record_call.h"
#include "text.h"
#ifdef KVROPE_WITH_CUDA
#include "cuda_launch.h"
#endif

namespace kvrope {

namespace {

// Tells autograd that these tensors are no longer what they were.
void bump_versions(const FusedArguments& args) {
  const auto bump = [](const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  bump(*args.q_out);
  bump(*args.k_out);
  bump(args.key_cache);
  bump(args.value_cache);
  if (args.zeros_out) bump(*args.zeros_out);
}

}  // namespace

void run_fused(const FusedArguments& args) {
  check_arguments(args);
  const c10::Device device = args.q.device();
#ifdef KVROPE_WITH_CUDA
  const bool has_kernel = device.is_cpu() || device.is_cuda();
#else
  const bool has_kernel = device.is_cpu();
#endif
  TORCH_CHECK_VALUE(
      has_kernel,
      text(kFusedName, ": q: expected a tensor on a device this build has a kernel for, got ", device));
  check_no_overlap(args);
  const RopeCacheParams params = make_params(args);
#ifdef KVROPE_WITH_CUDA
  device.is_cuda() ? run_on_cuda(params, device) : run_on_cpu(kFusedName, params);
#else
  run_on_cpu(kFusedName, params);
#endif
  bump_versions(args);
  if (records_calls()) record_call(args);
}

FusedOutputs fused_qk_rope_reshape_and_cache(const FusedArguments& arguments) {
  FusedArguments args = arguments;
  if (args.q.defined() && !args.q_out) args.q_out = at::empty(args.q.sizes(), args.q.options());
  if (args.k.defined() && !args.k_out) args.k_out = at::empty(args.k.sizes(), args.k.options());
  if (args.q.defined() && !args.zeros_out && args.output_zeros) {
    args.zeros_out = at::empty(args.q.sizes(), args.q.options());
  }
  run_fused(args);
  const int64_t row_size = args.q.size(1) * args.q.size(2);
  return {args.q_out->view({args.q.size(0), row_size}), *args.k_out, args.key_cache, args.value_cache,
          args.zeros_out};
}

}  // namespace kvrope
