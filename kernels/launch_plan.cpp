#include "launch_plan.h"

#include <algorithm>

#include "compact_params.h"

namespace kvrope {
namespace {

// Measured on an H200. Few rows are a matter of latency: many thin threads. Many rows are a matter of
// bandwidth.
constexpr int kFewRows = 256;
constexpr int kThreadsPerBlockOfFew = 512, kScatteredBytesPerVectorOfFew = 4;
constexpr int kThreadsPerBlock = 128;
constexpr int kMaxTileTokens = 16, kMaxThreadsPerTile = 1024;
constexpr int kMinRowsForTilesWithPdl = 1024;  // below, the next launch's blocks get in the way
constexpr int kMaxGridY = 65535;

bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

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

// A GPT-J vector of `width` elements takes width / 2 columns of a half-width table; asking for `width` of all
// styles keeps one rule. A column vector is read in pieces of at most 16 bytes.
bool fits(const CosSinTable& table, int width) {
  if (table.data == nullptr || width == 1) return true;
  const int64_t bytes = std::min<int64_t>(16, width * size_of(table.dtype));
  const int64_t elements = bytes / size_of(table.dtype);
  return table.column_stride == 1 && table.row_stride % elements == 0 && is_aligned(table.data, bytes);
}

bool fits(const RopeCacheParams& p, int width) {
  if (p.rotary_dim % (2 * width) != 0 || p.rotary_dim_offset % width != 0) return false;
  if (p.head_size % width != 0 || p.v_head_size % width != 0) return false;
  for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
    if (!fits(*rows, p.dtype, width)) return false;
  }
  if (!fits(p.cos_sin, width)) return false;
  if (!p.has_cache) return true;
  const CacheLayout& values = p.value_cache.layout;
  return fits(p.key_cache.layout, p.key_cache.data, p.cache_dtype, width) &&
         (!values.has_contiguous_dims(width) || fits(values, p.value_cache.data, p.cache_dtype, width));
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

}  // namespace

int widest_vector(const RopeCacheParams& params) {
  if (!is_compact(params)) return 1;
  int width = 16 / size_of(params.dtype);
  while (width > 1 && !fits(params, width)) width /= 2;
  return width;
}

LaunchPlan plan_launch(const RopeCacheParams& p) {
  LaunchPlan plan{};
  const bool is_few = p.num_kv_rows <= kFewRows;
  const bool is_scattered = p.has_cache && !p.value_cache.layout.has_contiguous_dims(2);
  const int kv_rows = p.num_kv_heads * (p.has_cache ? 2 : 1);
  plan.num_rows = p.num_q_heads + kv_rows;

  plan.vector_width = widest_vector(p);
  if (is_few) {
    const int bytes = is_scattered ? kScatteredBytesPerVectorOfFew : kBytesPerVectorOfFew;
    plan.vector_width = std::min(plan.vector_width, bytes / size_of(p.dtype));
  }
  plan.values_are_scattered = p.has_cache && !p.value_cache.layout.has_contiguous_dims(plan.vector_width);
  plan.threads_per_row = ceil_div(std::max(p.head_size, p.v_head_size), 2 * plan.vector_width);

  // Elements of one head dimension of the value cache lie a block apart: lanes go along tokens where there
  // are enough. The blocks of that part are counted in 31 bits.
  const bool by_token = is_scattered && !is_few && fits_in_31_bits(p.num_kv_rows * kv_rows);
  const int rows = by_token ? p.num_q_heads : plan.num_rows;
  if (by_token) {
    while ((2 << plan.tile_tokens_log2) <=
           std::min(kMaxTileTokens, kMaxThreadsPerTile / plan.threads_per_row)) {
      ++plan.tile_tokens_log2;
    }
    plan.rows_per_block = 1 << plan.tile_tokens_log2;
    plan.blocks_by_row = ceil_div(rows, plan.rows_per_block);
    const int64_t num_tiles = (p.num_kv_rows + plan.rows_per_block - 1) / plan.rows_per_block;
    plan.num_tiles = Divisor<uint32_t>(static_cast<uint32_t>(num_tiles));
    plan.blocks_by_token = static_cast<int>((num_tiles * kv_rows + p.num_kv_rows - 1) / p.num_kv_rows);
  } else {
    const int threads = is_few ? kThreadsPerBlockOfFew : kThreadsPerBlock;
    const int rows_that_fit = std::max(ceil_div(rows, kMaxGridY), threads / plan.threads_per_row);
    plan.blocks_by_row = ceil_div(rows, rows_that_fit);
    plan.rows_per_block = ceil_div(rows, plan.blocks_by_row);
  }
  plan.keeps_last_of_slot = is_few && p.has_cache && p.slot_mapping.size > 1;
  plan.use_pdl = !by_token || p.num_kv_rows >= kMinRowsForTilesWithPdl;
  return plan;
}

}  // namespace kvrope
