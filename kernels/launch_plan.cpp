#include "launch_plan.h"

#include <algorithm>

namespace kvrope {
namespace {

bool is_aligned(const void* data, int64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

bool fits(const HeadRows& rows, DType dtype, int width) {
  if (rows.data == nullptr || width == 1) return true;
  return rows.dim_stride == 1 && rows.token_stride % width == 0 && rows.head_stride % width == 0 &&
         is_aligned(rows.data, width * size_of(dtype));
}

bool fits(const CacheLayout& layout, const void* data, DType dtype, int width) {
  if (!layout.has_contiguous_dims(width)) return false;
  if (width == 1) return true;
  const bool is_split = layout.dim_split_log2 > 0;
  return layout.block_stride % width == 0 && layout.head_stride % width == 0 &&
         layout.offset_outer_stride % width == 0 && layout.offset_inner_stride % width == 0 &&
         (!is_split || layout.dim_outer_stride % width == 0) && is_aligned(data, width * size_of(dtype));
}

// A GPT-J vector of `width` elements takes width / 2 columns of a half-width table; asking for `width` of all styles
// keeps one rule. A column vector is read in pieces of at most 16 bytes.
bool fits(const CosSinTable& table, int rotary_dim, int width) {
  if (table.data == nullptr || width == 1) return true;
  const int64_t bytes = std::min<int64_t>(16, width * size_of(table.dtype));
  const int64_t elements = bytes / size_of(table.dtype);
  return table.column_stride == 1 && table.row_stride % elements == 0 && (rotary_dim / 2) % elements == 0 &&
         is_aligned(table.data, bytes);
}

bool fits(const RopeCacheParams& p, int width) {
  if (p.rotary_dim % (2 * width) != 0 || p.rotary_dim_offset % width != 0) return false;
  if (p.head_size % width != 0 || p.v_head_size % width != 0) return false;
  for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
    if (!fits(*rows, p.dtype, width)) return false;
  }
  if (!fits(p.cos_sin, p.rotary_dim, width)) return false;
  if (!p.has_cache) return true;
  const CacheLayout& values = p.value_cache.layout;
  return fits(p.key_cache.layout, p.key_cache.data, p.cache_dtype, width) &&
         (!values.has_contiguous_dims(width) || fits(values, p.value_cache.data, p.cache_dtype, width));
}

int power_of_two_at_least(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

int widest_vector(const RopeCacheParams& params) {
  int width = 16 / size_of(params.dtype);
  while (!fits(params, width)) width /= 2;
  return width;
}

LaunchPlan plan_launch(const RopeCacheParams& p) {
  LaunchPlan plan{};
  plan.num_rows = p.num_kv_rows;
  plan.vector_width = widest_vector(p);

  const int slices = ceil_div(std::max(p.head_size, p.v_head_size), 2 * plan.vector_width);
  plan.threads_per_row = std::min(32, power_of_two_at_least(slices));
  const int rows = p.num_q_heads + p.num_kv_heads * (p.has_cache ? 2 : 1);
  constexpr int kThreadsPerBlock = 128;
  plan.blocks_per_token = ceil_div(rows, kThreadsPerBlock / plan.threads_per_row);
  plan.rows_per_block = ceil_div(rows, plan.blocks_per_token);
  plan.use_pdl = true;
  return plan;
}

}  // namespace kvrope
