// torch.ops.kvrope_host_time: what the steps of one call cost the host, for host_time.py, which loads this
// library. Nothing here waits for the device: the caller does, before a stream's queue is full.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <chrono>
#include <functional>
#include <map>
#include <string>

#include "check_arguments.h"
#include "compact_params.h"
#include "launch_plan.h"
#include "make_params.h"
#include "run_operation.h"
#include "torch_library.h"
#ifdef KVROPE_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "cuda_fault_record.h"
#include "floors.h"
#include "rope_cache.h"
#endif

namespace kvrope {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Step = std::function<void()>;

// The compiler must take the value for one that is used.
template <typename T>
void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

void call_operator(const FusedArguments& a) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("kvrope::fused_qk_rope_reshape_and_cache", "")
                                    .typed<FusedSignature>();
  operation.call(a.q, a.k, a.v, a.key_cache, a.value_cache, a.slot_mapping, a.pos, a.cos_sin, a.k_scale,
                 a.v_scale, a.is_neox, a.flash_layout, a.apply_scale, a.offs, *a.q_out, *a.k_out, a.zeros_out,
                 a.swa_slot_mapping, a.rotary_dim, a.rotary_dim_offset, a.kv_cache_dtype, a.q_scale,
                 a.match_unfused, std::nullopt, false, a.q_weight, a.k_weight, a.eps, a.weight_plus_one);
}

std::map<std::string, Step> steps_of(const FusedArguments& args) {
  RopeCacheParams params = make_params(args);
  std::map<std::string, Step> steps = {
      {"C++ operator call", [&args] { call_operator(args); }},
      {"C++ call", [&args] { keep(fused_qk_rope_reshape_and_cache(args)); }},
      {"arguments copied", [&args] { keep(FusedArguments(args)); }},
      {"check_arguments", [&args] { check_arguments(args); }},
      {"check_no_overlap", [&args] { check_no_overlap(args); }},
      {"make_params", [&args] { keep(make_params(args)); }},
      {"plan_launch", [params] { keep(plan_launch(params)); }},
      {"make_compact", [params] { keep(make_compact(params)); }},
  };
#ifdef KVROPE_WITH_CUDA
  const c10::Device device = args.q.device();
  if (!device.is_cuda()) return steps;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream();
  params.fault_record = cuda_fault_record(device.index());
  steps["guard, stream, fault record"] = [device] {
    const c10::cuda::CUDAGuard guard(device);
    keep(c10::cuda::getCurrentCUDAStream());
    keep(cuda_fault_record(device.index()));
  };
  steps["launch"] = [params, stream] { C10_CUDA_CHECK(launch_rope_cache(params, stream)); };
  steps["launch without PDL"] = [params, stream] {
    C10_CUDA_CHECK(launch_rope_cache(params, stream, false));
  };
  steps["launch of a copy of 16 bytes"] = [from = params.q.data, to = params.q_out.data, stream] {
    C10_CUDA_CHECK(static_cast<cudaError_t>(kvrope_floor_copy(from, to, 1, stream)));
  };
#endif
  return steps;
}

// Microseconds a call.
double time_step(const std::string& name, int64_t calls, const Tensor& q, const Tensor& k, const Tensor& v,
                 const Tensor& key_cache, const Tensor& value_cache, const Tensor& slot_mapping,
                 const Tensor& pos, const Tensor& cos_sin, const OptionalTensor& k_scale,
                 const OptionalTensor& v_scale, bool flash_layout, const Tensor& q_out, const Tensor& k_out,
                 const OptionalTensor& swa_slot_mapping) {
  FusedArguments args;
  args.q = q, args.k = k, args.v = v;
  args.key_cache = key_cache, args.value_cache = value_cache, args.slot_mapping = slot_mapping;
  args.pos = pos, args.cos_sin = cos_sin;
  args.k_scale = k_scale, args.v_scale = v_scale;
  args.flash_layout = flash_layout;
  args.q_out = q_out, args.k_out = k_out;
  args.swa_slot_mapping = swa_slot_mapping;
  const std::map<std::string, Step> steps = steps_of(args);
  const auto step = steps.find(name);
  TORCH_CHECK_VALUE(step != steps.end(), "no step of this name on this device: ", name);
  step->second();
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  for (int64_t call = 0; call < calls; ++call) step->second();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(calls);
}

}  // namespace

TORCH_LIBRARY(kvrope_host_time, m) {
  m.def(
      "time_step(str name, int calls, Tensor q, Tensor k, Tensor v, Tensor(a!) key_cache, "
      "Tensor(b!) value_cache, Tensor slot_mapping, Tensor pos, Tensor cos_sin, Tensor? k_scale, "
      "Tensor? v_scale, bool flash_layout, Tensor(c!) q_out, Tensor(d!) k_out, Tensor? swa_slot_mapping) "
      "-> float",
      time_step);
}

}  // namespace kvrope
