#include "run_operation.h"

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
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  };
  for (const auto* output : {&args.q_out, &args.k_out, &args.zeros_out}) {
    if (*output) bump(**output);
  }
  bump(args.key_cache);
  bump(args.value_cache);
}

}  // namespace

void run_operation(const FusedArguments& args, Operation operation) {
  check_arguments(args, operation);
  const char* const name = name_of(operation);
  const c10::Device device = (rotates(operation) ? args.q : args.k).device();
#ifdef KVROPE_WITH_CUDA
  const bool has_kernel = device.is_cpu() || device.is_cuda();
#else
  const bool has_kernel = device.is_cpu();
#endif
  TORCH_CHECK_VALUE(has_kernel,
                    text(name, rotates(operation) ? ": q" : ": k",
                         ": expected a tensor on a device this build has a kernel for, got ", device));
  check_no_overlap(args, operation);
  const RopeCacheParams params = make_params(args, operation);
#ifdef KVROPE_WITH_CUDA
  device.is_cuda() ? run_on_cuda(params, device) : run_on_cpu(name, params);
#else
  run_on_cpu(name, params);
#endif
  bump_versions(args);
  if (operation == Operation::fused && records_calls()) record_call(args);
}

}  // namespace kvrope
