#include "make_params.h"

namespace kvrope {
namespace {

using at::Tensor;

// The stride of an axis of size 1 says nothing; 0 keeps it from deciding alignments.
int64_t stride_of(const Tensor& tensor, int64_t axis) {
  return tensor.size(axis) > 1 ? tensor.stride(axis) : 0;
}

void* data_of(const Tensor& tensor) {
  return const_cast<void*>(tensor.const_data_ptr());
}

// A tensor that is written must own its memory: mutable_data_ptr ends a lazy copy.
void* written(const Tensor& tensor) {
  return tensor.mutable_data_ptr();
}

HeadRows head_rows(const Tensor& tensor, void* data) {
  const int64_t dim_stride = tensor.size(2) > 1 ? tensor.stride(2) : 1;
  return {data, stride_of(tensor, 0), stride_of(tensor, 1), dim_stride};
}

IndexArray index_array(const Tensor& tensor) {
  const int64_t axis = tensor.dim() - 1;
  return {data_of(tensor), tensor.size(axis), stride_of(tensor, axis) * tensor.element_size(),
          tensor.scalar_type() == at::kLong};
}

ScaleArray scale_array(const std::optional<Tensor>& scale, bool apply_scale) {
  if (!scale || !apply_scale) return {nullptr, 0};
  return {scale->const_data_ptr<float>(), scale->dim() == 0 ? 0 : stride_of(*scale, 0)};
}

NormWeight norm_weight(const std::optional<Tensor>& weight) {
  if (!weight) return {nullptr, 0, false};
  return {data_of(*weight), weight->stride(0), weight->scalar_type() == at::kFloat};
}

DType dtype_of(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return DType::fp16;
    case at::kBFloat16:
      return DType::bf16;
    case at::kFloat8_e4m3fn:
      return DType::fp8_e4m3;
    case at::kFloat8_e5m2:
      return DType::fp8_e5m2;
    default:
      return DType::fp32;
  }
}

DType cache_dtype_of(const FusedArguments& args) {
  if (args.key_cache.scalar_type() != at::kByte) return dtype_of(args.key_cache.scalar_type());
  return args.kv_cache_dtype == "fp8_e5m2" ? DType::fp8_e5m2 : DType::fp8_e4m3;
}

int log2_of(int64_t power_of_two) {
  int log2 = 0;
  while ((int64_t{1} << log2) < power_of_two) ++log2;
  return log2;
}

// Axes of one cache tensor by meaning; see cache_layout.h for the formula they fill.
struct CacheAxes {
  int64_t block, head, offset, dim;
  int64_t inner = -1;  // the axis of x, where there is one
  bool splits_offset = false;
};

PagedCache paged_cache(const Tensor& tensor, const CacheAxes& axes) {
  CacheLayout layout{};
  layout.block_stride = stride_of(tensor, axes.block);
  layout.head_stride = stride_of(tensor, axes.head);
  layout.offset_outer_stride = stride_of(tensor, axes.offset);
  const bool splits_dim = axes.inner >= 0 && !axes.splits_offset;
  layout.dim_outer_stride = tensor.size(axes.dim) > 1 || splits_dim ? stride_of(tensor, axes.dim) : 1;
  if (axes.inner >= 0) {
    const int64_t inner_stride = tensor.size(axes.inner) > 1 ? tensor.stride(axes.inner) : 1;
    const int log2 = log2_of(tensor.size(axes.inner));
    (axes.splits_offset ? layout.offset_split_log2 : layout.dim_split_log2) = log2;
    (axes.splits_offset ? layout.offset_inner_stride : layout.dim_inner_stride) = inner_stride;
  }
  return {written(tensor), layout};
}

void add_keys(const FusedArguments& args, RopeCacheParams& p) {
  p.k = head_rows(args.k, data_of(args.k));
  if (args.k_out) p.k_out = head_rows(*args.k_out, written(*args.k_out));
  p.num_kv_rows = args.k.size(0);
  p.num_kv_heads = static_cast<int>(args.k.size(1));
}

void add_rotation(const FusedArguments& args, RopeCacheParams& p) {
  p.q = head_rows(args.q, data_of(args.q));
  p.q_out = head_rows(*args.q_out, written(*args.q_out));
  p.q_out_dtype = dtype_of(args.q_out->scalar_type());
  p.q_scale = scale_array(args.q_scale, true);
  if (args.zeros_out) p.zeros_out = head_rows(*args.zeros_out, written(*args.zeros_out));
  p.num_tokens = args.q.size(0);
  p.num_q_heads = static_cast<int>(args.q.size(1));
  p.rotary_dim = static_cast<int>(args.rotary_dim.value_or(args.q.size(2)));
  p.rotary_dim_offset = static_cast<int>(args.rotary_dim_offset);
  p.pos = index_array(args.pos);
  if (args.pos.dim() == 2) {
    p.pos_axis_stride = args.pos.stride(0);
    const auto& section = *args.mrope_section;
    p.axes = frequency_axes({{section[0], section[1], section[2]}, args.mrope_interleaved});
  }
  if (args.offs) p.offs = index_array(*args.offs);
  p.has_offs = args.offs.has_value();
  p.cos_sin = {data_of(args.cos_sin),
               args.cos_sin.size(0),
               stride_of(args.cos_sin, 0),
               args.cos_sin.stride(1),
               dtype_of(args.cos_sin.scalar_type()),
               args.cos_sin.size(1) == 2 * p.rotary_dim};
  p.q_weight = norm_weight(args.q_weight);
  p.k_weight = norm_weight(args.k_weight);
  p.norm_eps = static_cast<float>(args.eps);
  p.inverse_head_size = 1.0f / static_cast<float>(args.q.size(2));
  p.weight_plus_one = args.weight_plus_one;
}

void add_caches(const FusedArguments& args, RopeCacheParams& p) {
  const Tensor &keys = args.key_cache, &values = args.value_cache;
  if (args.flash_layout) {
    const CacheAxes axes = {.block = 0, .head = 2, .offset = 1, .dim = 3};
    p.key_cache = paged_cache(keys, axes);
    p.value_cache = paged_cache(values, axes);
    p.block_size = {keys.size(1)};
  } else {
    p.key_cache = paged_cache(keys, {.block = 0, .head = 1, .offset = 3, .dim = 2, .inner = 4});
    p.value_cache =
        values.dim() == 4
            ? paged_cache(values, {.block = 0, .head = 1, .offset = 3, .dim = 2})
            : paged_cache(values,
                          {.block = 0, .head = 1, .offset = 2, .dim = 3, .inner = 4, .splits_offset = true});
    p.block_size = {keys.size(3)};
  }
  p.v = head_rows(args.v, data_of(args.v));
  p.v_head_size = static_cast<int>(args.v.size(2));
  p.num_slots = keys.size(0) * p.block_size.divisor;
  p.k_scale = scale_array(args.k_scale, args.apply_scale);
  p.v_scale = scale_array(args.v_scale, args.apply_scale);
  p.slot_mapping = index_array(args.slot_mapping);
  if (args.swa_slot_mapping) p.swa_slot_mapping = index_array(*args.swa_slot_mapping);
  p.has_swa = args.swa_slot_mapping.has_value();
}

}  // namespace

// Alone, the cache write gets k final: all its rows are KV-only, and it divides by the scales.
RopeCacheParams make_params(const FusedArguments& args, Operation operation) {
  const Tensor& first = rotates(operation) ? args.q : args.k;
  RopeCacheParams p{};
  p.dtype = dtype_of(first.scalar_type());
  p.head_size = static_cast<int>(first.size(2));
  p.has_cache = writes_cache(operation);
  p.cache_dtype = p.has_cache ? cache_dtype_of(args) : p.dtype;
  p.is_neox = args.is_neox;
  p.match_unfused = args.match_unfused || operation == Operation::reshape_and_cache;
  if (rotates(operation)) add_rotation(args, p);
  p.num_kv_rows = p.num_tokens;
  if (args.k.defined()) add_keys(args, p);
  if (p.has_cache) add_caches(args, p);
  return p;
}

}  // namespace kvrope
