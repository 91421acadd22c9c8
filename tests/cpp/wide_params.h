// Parameters of a call to plan. Addresses are numbers: nothing is dereferenced.
#pragma once

#include "rope_cache_params.h"

namespace kvrope {

inline void* at_address(int64_t bytes) {
  return reinterpret_cast<void*>(int64_t{1} << 40 | bytes);
}

// Contiguous bf16 tensors, flash caches, NeoX over the whole head, an fp32 half-width table: everything
// allows 8.
inline RopeCacheParams wide_params() {
  RopeCacheParams p = {};
  const int64_t head_size = 128, q_heads = 8, kv_heads = 2, block_size = 16;
  p.q = p.q_out = p.zeros_out = {at_address(0), q_heads * head_size, head_size, 1};
  p.k = p.k_out = p.v = {at_address(1 << 20), kv_heads * head_size, head_size, 1};
  const CacheLayout flash = {.block_stride = block_size * kv_heads * head_size,
                             .head_stride = head_size,
                             .offset_outer_stride = kv_heads * head_size,
                             .offset_inner_stride = 0,
                             .dim_outer_stride = 1,
                             .dim_inner_stride = 0,
                             .offset_split_log2 = 0,
                             .dim_split_log2 = 0};
  p.key_cache = p.value_cache = {at_address(1 << 22), flash};
  p.cos_sin = {at_address(1 << 24), 4096, head_size, 1, DType::fp32, false};
  p.num_tokens = p.num_kv_rows = 5;
  p.num_slots = 4 * block_size;
  p.block_size = {block_size};
  p.num_q_heads = q_heads;
  p.num_kv_heads = kv_heads;
  p.head_size = p.v_head_size = p.rotary_dim = head_size;
  p.dtype = p.cache_dtype = DType::bf16;
  p.has_cache = p.is_neox = true;
  return p;
}

inline void use_split_key_cache(RopeCacheParams& p, int x) {
  CacheLayout& layout = p.key_cache.layout;
  layout.head_stride = p.head_size * p.block_size.divisor;
  layout.dim_outer_stride = p.block_size.divisor * x;
  layout.offset_outer_stride = x;
  layout.dim_inner_stride = 1;
  layout.dim_split_log2 = x == 16 ? 4 : x == 8 ? 3 : x == 4 ? 2 : x == 2 ? 1 : 0;
}

inline void use_split_value_cache(RopeCacheParams& p) {
  CacheLayout& layout = p.value_cache.layout;
  layout.head_stride = p.v_head_size * p.block_size.divisor;
  layout.dim_outer_stride = p.block_size.divisor;
  layout.offset_outer_stride = 1;
}

}  // namespace kvrope
