// torch.ops.kvrope: schema and the CPU, CUDA and Meta kernels of the operator.
#include "torch_library.h"

#include <torch/library.h>

#include <type_traits>

#include "check_arguments.h"
#include "fused.h"

namespace kvrope {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// A kernel of the operator: gathers the dispatcher's arguments and serves them.
template <void (*kServe)(const FusedArguments&)>
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
  FusedArguments args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.key_cache = key_cache;
  args.value_cache = value_cache;
  args.slot_mapping = slot_mapping;
  args.pos = pos;
  args.cos_sin = cos_sin;
  args.k_scale = k_scale;
  args.v_scale = v_scale;
  args.is_neox = is_neox;
  args.flash_layout = flash_layout;
  args.apply_scale = apply_scale;
  args.offs = offs;
  args.q_out = q_out;
  args.k_out = k_out;
  args.zeros_out = zeros_out;
  args.swa_slot_mapping = swa_slot_mapping;
  args.rotary_dim = rotary_dim;
  args.rotary_dim_offset = rotary_dim_offset;
  args.kv_cache_dtype = std::string(kv_cache_dtype);
  args.q_scale = q_scale;
  args.match_unfused = match_unfused;
  if (mrope_section) args.mrope_section = mrope_section->vec();
  args.mrope_interleaved = mrope_interleaved;
  args.q_weight = q_weight;
  args.k_weight = k_weight;
  args.eps = eps;
  args.weight_plus_one = weight_plus_one;
  kServe(args);
}

static_assert(std::is_same_v<decltype(fused_kernel<run_fused>), FusedSignature>);

void check_without_data(const FusedArguments& args) {
  check_arguments(args);
  check_no_overlap(args);
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

}  // namespace

// The Python call's arguments in its order; outputs are passed in and declared as mutated.
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
  // clang-format on
  for (const c10::DispatchKey key : kOtherLayouts) {
    m.impl(kFusedName, torch::dispatch(key, fused_kernel<run_fused>));
  }
  for (const c10::DispatchKey key : kPending) {
    m.impl(kFusedName, torch::dispatch(key, torch::CppFunction::makeFallthrough()));
  }
}

TORCH_LIBRARY_IMPL(kvrope, CPU, m) {
  m.impl(kFusedName, fused_kernel<run_fused>);
}
TORCH_LIBRARY_IMPL(kvrope, CUDA, m) {
  m.impl(kFusedName, fused_kernel<run_fused>);
}
TORCH_LIBRARY_IMPL(kvrope, Meta, m) {
  m.impl(kFusedName, fused_kernel<check_without_data>);
}

}  // namespace kvrope
