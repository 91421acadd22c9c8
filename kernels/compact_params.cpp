#include "compact_params.h"

#include <initializer_list>

namespace kvrope {
namespace {

bool fits(int64_t value) {
  return fits_in_31_bits(value);
}

bool fits_in_bytes(int64_t stride) {
  return stride >= 0 && stride <= kMaxByteAddressedStride;
}

bool fits(const HeadRows& rows) {
  return fits(rows.token_stride) && fits(rows.head_stride) && fits(rows.dim_stride);
}

bool fits(const CacheLayout& layout) {
  return fits(layout.block_stride) && fits(layout.head_stride) && fits(layout.offset_outer_stride) &&
         fits(layout.offset_inner_stride) && fits(layout.dim_outer_stride) && fits(layout.dim_inner_stride);
}

bool fits(const IndexArray& array) {
  return fits(array.size) && fits(array.byte_stride);
}

uint32_t narrow(int64_t value) {
  return static_cast<uint32_t>(value);
}

BasicHeadRows<uint32_t> narrow(const HeadRows& rows) {
  return {rows.data, narrow(rows.token_stride), narrow(rows.head_stride), narrow(rows.dim_stride)};
}

BasicIndexArray<uint32_t> narrow(const IndexArray& array) {
  return {array.data, narrow(array.size), narrow(array.byte_stride), array.is_int64};
}

BasicCosSinTable<uint32_t> narrow(const CosSinTable& table) {
  return {table.data,  narrow(table.num_rows), narrow(table.row_stride), narrow(table.column_stride),
          table.dtype, table.is_full_width};
}

BasicNormWeight<uint32_t> narrow(const NormWeight& weight) {
  return {weight.data, narrow(weight.stride), weight.is_fp32};
}

BasicPagedCache<uint32_t> narrow(const PagedCache& cache) {
  const CacheLayout& layout = cache.layout;
  return {cache.data,
          {narrow(layout.block_stride), narrow(layout.head_stride), narrow(layout.offset_outer_stride),
           narrow(layout.offset_inner_stride), narrow(layout.dim_outer_stride),
           narrow(layout.dim_inner_stride), layout.offset_split_log2, layout.dim_split_log2}};
}

}  // namespace

bool is_compact(const RopeCacheParams& p) {
  for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
    if (!fits(*rows)) return false;
  }
  for (const IndexArray* array : {&p.slot_mapping, &p.swa_slot_mapping, &p.pos, &p.offs}) {
    if (!fits(*array)) return false;
  }
  return fits(p.num_tokens) && fits(p.num_kv_rows) && fits(p.num_slots) && fits(p.block_size.divisor) &&
         fits(p.cos_sin.num_rows) && fits_in_bytes(p.cos_sin.row_stride) && fits(p.cos_sin.column_stride) &&
         fits(p.key_cache.layout) && fits(p.value_cache.layout) && fits(p.q_weight.stride) &&
         fits(p.k_weight.stride) && fits(p.pos_axis_stride);
}

CompactParams make_compact(const RopeCacheParams& p) {
  CompactParams c{};
  c.num_tokens = narrow(p.num_tokens);
  c.num_kv_rows = narrow(p.num_kv_rows);
  c.num_q_heads = p.num_q_heads;
  c.num_kv_heads = p.num_kv_heads;
  c.head_size = p.head_size;
  c.v_head_size = p.v_head_size;
  c.rotary_dim = p.rotary_dim;
  c.rotary_dim_offset = p.rotary_dim_offset;
  c.has_cache = p.has_cache;
  c.has_swa = p.has_swa;
  c.has_offs = p.has_offs;
  c.is_neox = p.is_neox;
  c.match_unfused = p.match_unfused;
  c.dtype = p.dtype;
  c.cache_dtype = p.cache_dtype;
  c.pos = narrow(p.pos);
  c.cos_sin = narrow(p.cos_sin);
  c.q = narrow(p.q);
  c.q_out = narrow(p.q_out);
  c.slot_mapping = narrow(p.slot_mapping);
  c.num_slots = narrow(p.num_slots);
  if (p.has_cache) c.block_size = Divisor<uint32_t>(narrow(p.block_size.divisor));
  c.v = narrow(p.v);
  c.value_cache = narrow(p.value_cache);
  c.k = narrow(p.k);
  c.k_out = narrow(p.k_out);
  c.key_cache = narrow(p.key_cache);
  c.k_scale = p.k_scale;
  c.v_scale = p.v_scale;
  c.offs = narrow(p.offs);
  c.swa_slot_mapping = narrow(p.swa_slot_mapping);
  c.zeros_out = narrow(p.zeros_out);
  c.fault_record = p.fault_record;
  c.q_weight = narrow(p.q_weight);
  c.k_weight = narrow(p.k_weight);
  c.norm_eps = p.norm_eps;
  c.inverse_head_size = p.inverse_head_size;
  c.pos_axis_stride = narrow(p.pos_axis_stride);
  c.weight_plus_one = p.weight_plus_one;
  c.q_out_dtype = p.q_out_dtype;
  c.q_scale = p.q_scale;
  c.axes = p.axes;
  return c;
}

}  // namespace kvrope
