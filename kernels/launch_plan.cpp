#include "launch_plan.h"

#include <algorithm>

#include "compact_params.h"

namespace kvrope {
namespace {

// Measured on an H200. Few rows are a matter of latency, many of bandwidth:
//
//   up to kFewRows      one row a thread
//   up to kThinRows     short vectors in large blocks, where the form has kernels of them; small blocks where
//                       single elements are stored, of which a multiprocessor takes one at a time, and
//                       smaller ones up to kFewestRows
//   from kManyRows on   four rows a thread, eight of extended calls, in small blocks; in between two
constexpr int kFewestRows = 32, kThinRows = 128, kFewRows = 256, kManyRows = 2048;
constexpr int kSmallBlock = 64, kBlock = 128, kLargeBlock = 256;
constexpr int kMaxRowsAtOnce = 64;       // blockDim.z
constexpr int kMaxBlocksOfRows = 16000;  // grid.y has 65535, for q, k and v

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

bool fits(const NormWeight& weight, DType dtype, int width) {
  if (weight.data == nullptr || width == 1) return true;
  const int64_t bytes = std::min<int64_t>(16, width * size_of(weight.is_fp32 ? DType::fp32 : dtype));
  return weight.stride == 1 && is_aligned(weight.data, bytes);
}

bool fits(const RopeCacheParams& p, int width) {
  if (p.rotary_dim % (2 * width) != 0 || p.rotary_dim_offset % width != 0) return false;
  if (p.head_size % width != 0 || p.v_head_size % width != 0) return false;
  for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
    if (!fits(*rows, rows == &p.q_out && is_fp8(p.q_out_dtype) ? p.q_out_dtype : p.dtype, width))
      return false;
  }
  if (!fits(p.cos_sin, width)) return false;
  // A part of a norm's sum is a vector of each half of a head (rms_norm.cuh).
  if (is_normed(p) && p.head_size % (2 * width) != 0) return false;
  if (!fits(p.q_weight, p.dtype, width) || !fits(p.k_weight, p.dtype, width)) return false;
  if (!p.has_cache) return true;
  const CacheLayout& values = p.value_cache.layout;
  return fits(p.key_cache.layout, p.key_cache.data, p.cache_dtype, width) &&
         (!values.has_contiguous_dims(width) || fits(values, p.value_cache.data, p.cache_dtype, width));
}

int ceil_div(int a, int b) {
  return (a + b - 1) / b;
}

int power_of_two_from(int n) {
  int power = 1;
  while (power < n) power *= 2;
  return power;
}

// Heads in blocks of about as many rows as are given, each as many as the others. A call without these rows
// has no blocks for them.
void divide_rows(int heads, int rows_wanted, int* blocks, int* rows_per_block) {
  const int rows = std::max(rows_wanted, ceil_div(heads, kMaxBlocksOfRows));
  *blocks = ceil_div(heads, rows);
  *rows_per_block = heads > 0 ? ceil_div(heads, *blocks) : 0;
}

bool is_split(const RopeCacheParams& p) {
  return p.has_cache && p.key_cache.layout.dim_split_log2 > 0;
}

bool is_thin(const RopeCacheParams& p) {
  return p.num_kv_rows <= kThinRows;
}

bool is_many(const RopeCacheParams& p) {
  return p.num_kv_rows >= kManyRows;
}

int threads_per_block(const RopeCacheParams& p, const LaunchPlan& plan) {
  if (is_thin(p) && plan.values_are_apart) return p.num_kv_rows <= kFewestRows ? kSmallBlock : kBlock;
  if (is_thin(p) && plan.vector_width * size_of(p.dtype) < kLongVectorBytes) return kLargeBlock;
  return is_many(p) && (is_split(p) || plan.form == CallForm::extended) ? kSmallBlock : kBlock;
}

int slices_of_row(const RopeCacheParams& p, int vector_width) {
  return ceil_div(std::max(p.head_size, p.v_head_size), 2 * vector_width);
}

// Where heads are normed every thread of a row must have a slice (has_slice_of_row).
bool is_extended_with(const RopeCacheParams& p, int width) {
  const int slices = slices_of_row(p, width);
  const bool fills_threads = slices == power_of_two_from(slices);
  return width * size_of(p.dtype) >= kShortVectorBytes && p.dtype != DType::fp32 && p.is_neox &&
         has_plain_form(p) && has_extensions(p) && slices <= kWarp && (fills_threads || !is_normed(p));
}

// The usual form has kernels of long vectors, in 16 bits.
bool is_usual_with(const RopeCacheParams& p, int width) {
  return width * size_of(p.dtype) == kLongVectorBytes && p.dtype != DType::fp32 && has_usual_form(p) &&
         !has_extensions(p);
}

CallForm form_with(const RopeCacheParams& p, int width) {
  if (is_extended_with(p, width)) return CallForm::extended;
  const bool has_plain_kernels = width * size_of(p.dtype) >= kShortVectorBytes;
  if (has_plain_kernels && has_plain_form(p) && !has_extensions(p)) return CallForm::plain;
  return is_usual_with(p, width) ? CallForm::usual : CallForm::general;
}

// Few rows get short vectors, but for calls whose form has kernels of long ones alone. With extensions long
// ones are for extended calls (is_extended_with): those of many rows, and those of few whose short vectors
// would need more than a warp.
int vector_width_for(const RopeCacheParams& p) {
  const int widest = widest_vector(p), thin = std::min(widest, kShortVectorBytes / size_of(p.dtype));
  if (!has_extensions(p)) return is_thin(p) && form_with(p, widest) != CallForm::usual ? thin : widest;
  const bool has_long = is_extended_with(p, widest) && !(is_thin(p) && is_extended_with(p, thin));
  return has_long ? widest : thin;
}

void plan_rows(const RopeCacheParams& p, LaunchPlan& plan) {
  const bool is_extended = plan.form == CallForm::extended;
  plan.threads_per_row = slices_of_row(p, plan.vector_width);
  // A power of two, so that watchers have warps of their own, and for the sum of a norm (row_sum.cuh).
  if (plan.keeps_last_of_slot || is_normed(p)) plan.threads_per_row = power_of_two_from(plan.threads_per_row);
  const int rows =
      std::max(plan.keeps_last_of_slot ? 2 : 1, threads_per_block(p, plan) / plan.threads_per_row);
  // The tokens of a warp go through the sum of a norm together (row_sum.cuh): KV-only rows do not.
  const bool fits_warp =
      !is_normed(p) || (2 * plan.threads_per_row <= kWarp && p.num_kv_rows == p.num_tokens);
  const bool has_pairs = rows > 1 && p.num_kv_rows > kFewRows && fits_warp;
  plan.tokens_per_block =
      has_pairs && (is_split(p) || (is_many(p) && (is_extended || p.num_kv_heads < rows))) ? 2 : 1;
  plan.rows_at_once = std::min(rows / plan.tokens_per_block, kMaxRowsAtOnce);
  plan.distances_in_row =
      static_cast<uint32_t>((std::min(kWarp, plan.threads_per_row) - 1) * plan.tokens_per_block);
  plan.kv_rows_at_once = plan.keeps_last_of_slot ? plan.rows_at_once / 2 : plan.rows_at_once;
  const int rows_of_many = is_extended ? 8 : 4;
  const int rows_per_thread = p.num_kv_rows <= kFewRows ? 1 : is_many(p) ? rows_of_many : 2;
  divide_rows(p.num_q_heads, plan.rows_at_once * rows_per_thread, &plan.q_blocks, &plan.rows_per_q_block);
  divide_rows(p.num_kv_heads, plan.kv_rows_at_once * rows_per_thread, &plan.kv_blocks,
              &plan.rows_per_kv_block);
}

void plan_tiles(const RopeCacheParams& p, LaunchPlan& plan) {
  const int cache_size = size_of(p.cache_dtype), run = 16 / cache_size;
  const int64_t tiles = (p.num_kv_rows + kTileTokens - 1) / kTileTokens;
  plan.num_tiles = Divisor<uint32_t>(static_cast<uint32_t>(tiles));
  plan.heads_per_tile_block = static_cast<int>(plan.grid_x(p.num_kv_rows) / tiles);
  plan.tile_blocks = ceil_div(p.num_kv_heads, plan.heads_per_tile_block);
  plan.row_threads = Divisor<uint32_t>(static_cast<uint32_t>(plan.threads_per_row));
  // Whole words, an odd number of them: rows start in different banks of shared memory.
  plan.tile_pitch = (ceil_div(p.v_head_size * cache_size, 4) | 1) * 4 / cache_size;
  plan.stores_runs = is_aligned(p.value_cache.data, 16) && p.value_cache.layout.dim_outer_stride % run == 0;
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
  plan.vector_width = vector_width_for(p);
  plan.use_pdl = true;
  plan.keeps_last_of_slot = p.has_cache && p.num_kv_rows <= kFewRows && p.slot_mapping.size > 1;
  plan.form = form_with(p, plan.vector_width);
  plan.values_are_apart = p.has_cache && !p.value_cache.layout.has_contiguous_dims(2);
  plan.values_are_tiled = plan.values_are_apart && p.num_kv_rows > kFewRows;
  plan_rows(p, plan);
  plan.q_heads_per_group = Divisor<uint32_t>(std::max(1, p.num_q_heads / std::max(1, p.num_kv_heads)));
  if (plan.values_are_tiled) plan_tiles(p, plan);
  return plan;
}

}  // namespace kvrope
