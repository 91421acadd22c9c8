#include "call_options.h"

namespace kvrope {

bool is_normed(const RopeCacheParams& p) {
  return p.q_weight.data != nullptr || p.k_weight.data != nullptr;
}

bool has_extensions(const RopeCacheParams& p) {
  return is_normed(p) || p.pos_axis_stride != 0 || is_fp8(p.q_out_dtype);
}

bool has_usual_options(const RopeCacheParams& p) {
  const bool has_usual_rows =
      p.has_cache && p.num_kv_rows == p.num_tokens && p.slot_mapping.size == p.num_tokens;
  const bool is_scaled = p.k_scale.data != nullptr || p.v_scale.data != nullptr;
  return has_usual_rows && !p.cos_sin.is_full_width && !p.match_unfused &&
         (!is_scaled || p.cache_dtype != p.dtype);
}

bool has_plain_options(const RopeCacheParams& p) {
  const bool has_plain_heads = p.rotary_dim_offset == 0 && p.v_head_size == p.head_size;
  const bool has_plain_outputs = p.k_out.data != nullptr && p.zeros_out.data == nullptr;
  return has_usual_options(p) && has_plain_heads && p.cos_sin.dtype == DType::fp32 && has_plain_outputs &&
         !p.has_offs && !p.has_swa;
}

bool is_rotated_whole(const RopeCacheParams& p) {
  return p.rotary_dim == p.head_size;
}

}  // namespace kvrope
