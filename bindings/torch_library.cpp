// torch.ops.kvrope: schemas and the CPU, CUDA and Meta kernels of the operators.
#include "torch_library.h"

#include <torch/library.h>

#include <type_traits>

#include "check_arguments.h"
#include "run_operation.h"

namespace kvrope {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using Serve = void(const FusedArguments&, Operation);

RotationArguments rotation_arguments(const Tensor& pos, const Tensor& cos_sin, bool is_neox,
                                     const OptionalTensor& offs, const Tensor& q_out,
                                     const OptionalTensor& k_out, std::optional<int64_t> rotary_dim,
                                     int64_t rotary_dim_offset, const OptionalTensor& q_scale,
                                     at::OptionalIntArrayRef mrope_section, bool mrope_interleaved,
                                     const OptionalTensor& q_weight, const OptionalTensor& k_weight,
                                     double eps, bool weight_plus_one) {
  std::optional<std::vector<int64_t>> section;
  if (mrope_section) section = mrope_section->vec();
  return {.pos = pos,
          .cos_sin = cos_sin,
          .is_neox = is_neox,
          .offs = offs,
          .rotary_dim = rotary_dim,
          .rotary_dim_offset = rotary_dim_offset,
          .q_out = q_out,
          .k_out = k_out,
          .q_scale = q_scale,
          .mrope_section = section,
          .mrope_interleaved = mrope_interleaved,
          .q_weight = q_weight,
          .k_weight = k_weight,
          .eps = eps,
          .weight_plus_one = weight_plus_one};
}

// The kernels of the operators: each gathers the dispatcher's arguments and serves them.
template <Serve* kServe>
void fused_kernel(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& key_cache,
                  const Tensor& value_cache, const Tensor& slot_mapping, const Tensor& pos,
                  const Tensor& cos_sin, const OptionalTensor& k_scale, const OptionalTensor& v_scale,
                  bool is_neox, bool flash_layout, bool apply_scale, const OptionalTensor& offs,
                  const Tensor& q_out, const Tensor& k_out, const OptionalTensor& zeros_out,
                  const OptionalTensor& swa_slot_mapping, std::optional<int64_t> rotary_dim,
                  int64_t rotary_dim_offset, c10::string_view kv_cache_dtype, const OptionalTensor& q_scale,
                  bool match_unfused, at::OptionalIntArrayRef mrope_section, bool mrope_interleaved,
                  const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                  bool weight_plus_one) {
  const FusedArguments args = {
      rotation_arguments(pos, cos_sin, is_neox, offs, q_out, k_out, rotary_dim, rotary_dim_offset, q_scale,
                         mrope_section, mrope_interleaved, q_weight, k_weight, eps, weight_plus_one),
      {v, key_cache, value_cache, slot_mapping, k_scale, v_scale, flash_layout, apply_scale, swa_slot_mapping,
       std::string(kv_cache_dtype)},
      q,
      k,
      false,
      zeros_out,
      match_unfused};
  kServe(args, Operation::fused);
}

template <Serve* kServe>
void rope_kernel(const Tensor& q, const OptionalTensor& k, const Tensor& pos, const Tensor& cos_sin,
                 bool is_neox, const OptionalTensor& offs, const Tensor& q_out, const OptionalTensor& k_out,
                 std::optional<int64_t> rotary_dim, int64_t rotary_dim_offset, const OptionalTensor& q_scale,
                 at::OptionalIntArrayRef mrope_section, bool mrope_interleaved,
                 const OptionalTensor& q_weight, const OptionalTensor& k_weight, double eps,
                 bool weight_plus_one) {
  const RopeArguments args = {
      rotation_arguments(pos, cos_sin, is_neox, offs, q_out, k_out, rotary_dim, rotary_dim_offset, q_scale,
                         mrope_section, mrope_interleaved, q_weight, k_weight, eps, weight_plus_one),
      q, k};
  kServe(as_fused(args), Operation::rope);
}

template <Serve* kServe>
void reshape_and_cache_kernel(const Tensor& k, const Tensor& v, const Tensor& key_cache,
                              const Tensor& value_cache, const Tensor& slot_mapping,
                              const OptionalTensor& k_scale, const OptionalTensor& v_scale, bool flash_layout,
                              bool apply_scale, const OptionalTensor& swa_slot_mapping,
                              c10::string_view kv_cache_dtype) {
  const ReshapeAndCacheArguments args = {
      {v, key_cache, value_cache, slot_mapping, k_scale, v_scale, flash_layout, apply_scale, swa_slot_mapping,
       std::string(kv_cache_dtype)},
      k};
  kServe(as_fused(args), Operation::reshape_and_cache);
}

static_assert(std::is_same_v<decltype(fused_kernel<run_operation>), FusedSignature>);
static_assert(std::is_same_v<decltype(rope_kernel<run_operation>), RopeSignature>);
static_assert(std::is_same_v<decltype(reshape_and_cache_kernel<run_operation>), ReshapeAndCacheSignature>);

void check_without_data(const FusedArguments& args, Operation operation) {
  check_arguments(args, operation);
  check_no_overlap(args, operation);
}

// Kinds of tensors for the checker to refuse with its own words: other layouts, and what torch would make
// ready behind our back (its own handling expects mutated arguments to be returned).
constexpr c10::DispatchKey kOtherLayouts[] = {
    c10::DispatchKey::SparseCPU,        c10::DispatchKey::SparseCUDA,
    c10::DispatchKey::SparseCsrCPU,     c10::DispatchKey::SparseCsrCUDA,
    c10::DispatchKey::MkldnnCPU,        c10::DispatchKey::QuantizedCPU,
    c10::DispatchKey::QuantizedCUDA,    c10::DispatchKey::NestedTensorCPU,
    c10::DispatchKey::NestedTensorCUDA, c10::DispatchKey::AutogradNestedTensor};
constexpr c10::DispatchKey kPending[] = {c10::DispatchKey::Negative, c10::DispatchKey::Conjugate,
                                         c10::DispatchKey::ZeroTensor};

template <Serve* kServe, typename Register>
void for_each_operator(const Register& implement) {
  implement("fused_qk_rope_reshape_and_cache", fused_kernel<kServe>);
  implement("rope", rope_kernel<kServe>);
  implement("reshape_and_cache", reshape_and_cache_kernel<kServe>);
}

template <Serve* kServe>
void implement_all(torch::Library& m) {
  for_each_operator<kServe>([&](const char* name, auto* kernel) { m.impl(name, kernel); });
}

}  // namespace

// The Python calls' arguments in their order; outputs are passed in and declared as mutated.
TORCH_LIBRARY(kvrope, m) {
  // clang-format off
  m.def("fused_qk_rope_reshape_and_cache("
        "Tensor q, Tensor k, Tensor v, Tensor(a!) key_cache, Tensor(b!) value_cache, "
        "Tensor slot_mapping, Tensor pos, Tensor cos_sin, Tensor? k_scale, Tensor? v_scale, "
        "bool is_neox, bool flash_layout, bool apply_scale, Tensor? offs, "
        "Tensor(c!) q_out, Tensor(d!) k_out, Tensor(e!)? zeros_out, Tensor? swa_slot_mapping, *, "
        "int? rotary_dim=None, int rotary_dim_offset=0, str kv_cache_dtype=\"auto\", "
        "Tensor? q_scale=None, bool match_unfused=False, "
        "int[]? mrope_section=None, bool mrope_interleaved=False, "
        "Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-6, bool weight_plus_one=False) -> ()");
  m.def("rope("
        "Tensor q, Tensor? k, Tensor pos, Tensor cos_sin, bool is_neox, Tensor? offs, "
        "Tensor(a!) q_out, Tensor(b!)? k_out, *, "
        "int? rotary_dim=None, int rotary_dim_offset=0, Tensor? q_scale=None, "
        "int[]? mrope_section=None, bool mrope_interleaved=False, "
        "Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-6, bool weight_plus_one=False) -> ()");
  m.def("reshape_and_cache("
        "Tensor k, Tensor v, Tensor(a!) key_cache, Tensor(b!) value_cache, Tensor slot_mapping, "
        "Tensor? k_scale, Tensor? v_scale, bool flash_layout, *, "
        "bool apply_scale=True, Tensor? swa_slot_mapping=None, str kv_cache_dtype=\"auto\") -> ()");
  // clang-format on
  for (const c10::DispatchKey key : kOtherLayouts) {
    for_each_operator<run_operation>(
        [&](const char* name, auto* kernel) { m.impl(name, torch::dispatch(key, kernel)); });
  }
  for (const c10::DispatchKey key : kPending) {
    for_each_operator<run_operation>([&](const char* name, auto*) {
      m.impl(name, torch::dispatch(key, torch::CppFunction::makeFallthrough()));
    });
  }
}

TORCH_LIBRARY_IMPL(kvrope, CPU, m) {
  implement_all<run_operation>(m);
}
TORCH_LIBRARY_IMPL(kvrope, CUDA, m) {
  implement_all<run_operation>(m);
}
TORCH_LIBRARY_IMPL(kvrope, Meta, m) {
  implement_all<check_without_data>(m);
}
// No gradient flows through a call. Torch's own fallback for such operators does the same by way of boxed
// arguments, which takes as long as all checks of a call.
TORCH_LIBRARY_IMPL(kvrope, Autograd, m) {
  for_each_operator<run_operation>(
      [&](const char* name, auto*) { m.impl(name, torch::CppFunction::makeFallthrough()); });
}

}  // namespace kvrope
