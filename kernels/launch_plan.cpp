#include "launch_plan.h"

#include <algorithm>

#include "call_options.h"
#include "compact_params.h"

namespace kvrope {
namespace {

// Measured on an H200. Few rows are a matter of latency, many of bandwidth:
//
//   up to kThinRows     short vectors in kLargeBlock threads where the form has kernels of them; where single
//                       elements are stored, of which a multiprocessor takes one at a time, kBlock, and
//                       kSmallBlock up to kFewestRows; there, and where a row takes a warp or more, half of
//                       the threads of k and v have no row and only look at later ones (last_of_slot.cuh)
//   up to kFewRows      one row of a head a thread, and beyond while kThreadsAtOnce suffice
//   from kManyRows on   four, eight of extended calls; in between two. Extended calls, split fp8 keys and few
//                       heads with short rows: kSmallBlock
constexpr int kFewestRows = 32, kThinRows = 128, kFewRows = 256, kManyRows = 2048;
constexpr int kSmallBlock = 64, kBlock = 128, kLargeBlock = 256;
// Of 384 rows with 48 heads of 8 slices: about as many threads as 132 multiprocessors hold.
constexpr int64_t kThreadsAtOnce = 147456;
constexpr int kFewHeads = 2;  // has_few_heads

// Values that lie apart are stored element by element up to kThinRows, and up to kFewRows if they are fp8 or
// no more than kElementHeads heads of all rows. Few tiles are divided among up to kTileBlocks blocks.
constexpr int64_t kElementHeads = 1024, kTileBlocks = 448;
constexpr int kMaxTilePartsLog2 = 2;

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

// Many rows of few heads, as where a model is divided among many GPUs.
bool has_few_heads(const RopeCacheParams& p) {
  const int heads = p.num_kv_heads;
  return heads > 0 && heads <= kFewHeads && p.num_kv_rows >= int64_t{kManyRows} * heads;
}

int vector_bytes(const RopeCacheParams& p, const LaunchPlan& plan) {
  return plan.vector_width * size_of(p.dtype);
}

int slices_of_row(const RopeCacheParams& p, int vector_width) {
  return ceil_div(std::max(p.head_size, p.v_head_size), 2 * vector_width);
}

// A power of two for votes, which take whole warps (last_of_slot.cuh), and for the sum of a norm
// (row_sum.cuh); large enough that kMaxRowsAtOnce rows fill the largest block.
int power_of_two_of_threads(int slices) {
  return power_of_two_from(std::max(slices, kLargeBlock / kMaxRowsAtOnce));
}

bool has_kernels_of(const RopeCacheParams& p, CallForm form, int width) {
  return has_kernels(form, width * size_of(p.dtype), size_of(p.dtype), p.is_neox);
}

// Where heads are normed every thread of a row must have a slice (has_slice_of_row).
bool is_extended_with(const RopeCacheParams& p, int width) {
  const int slices = slices_of_row(p, width);
  const bool has_pairs = p.head_size % (2 * width) == 0;
  const bool fills_threads = slices == power_of_two_of_threads(slices);
  return has_kernels_of(p, CallForm::extended, width) && has_plain_options(p) && has_extensions(p) &&
         has_pairs && slices <= kWarp && (fills_threads || !is_normed(p));
}

CallForm form_with(const RopeCacheParams& p, int width) {
  if (is_extended_with(p, width))
    return is_rotated_whole(p) ? CallForm::extended : CallForm::extended_partial;
  if (has_extensions(p)) return CallForm::general;
  const bool is_plain = has_plain_options(p) && is_rotated_whole(p);
  if (is_plain && has_kernels_of(p, CallForm::plain, width)) return CallForm::plain;
  const bool is_usual = has_usual_options(p) && has_kernels_of(p, CallForm::usual, width);
  return is_usual ? CallForm::usual : CallForm::general;
}

// Few rows get short vectors, but for calls whose form has kernels of long ones alone. With extensions long
// ones are for extended calls (is_extended_with): those of more rows, and those of few whose short vectors
// would need more than a warp.
int vector_width_for(const RopeCacheParams& p) {
  const int widest = widest_vector(p), thin = std::min(widest, kShortVectorBytes / size_of(p.dtype));
  if (!has_extensions(p)) return is_thin(p) && form_with(p, widest) != CallForm::usual ? thin : widest;
  const bool has_long = is_extended_with(p, widest) && !(is_thin(p) && is_extended_with(p, thin));
  return has_long ? widest : thin;
}

bool takes_tiles(const RopeCacheParams& p) {
  if (p.num_kv_rows > kFewRows) return true;
  return !is_thin(p) && !is_fp8(p.cache_dtype) && p.num_kv_rows * p.num_kv_heads > kElementHeads;
}

int threads_per_block(const RopeCacheParams& p, const LaunchPlan& plan) {
  if (is_thin(p) && plan.values_are_apart) return p.num_kv_rows <= kFewestRows ? kSmallBlock : kBlock;
  if (p.num_kv_rows <= kFewRows && vector_bytes(p, plan) <= kShortVectorBytes) return kLargeBlock;
  const bool has_short_rows = has_few_heads(p) && plan.threads_per_row * 8 <= kWarp;
  const bool is_split_fp8 = is_split(p) && is_fp8(p.cache_dtype);
  return is_many(p) && (is_extended(plan.form) || has_short_rows || is_split_fp8) ? kSmallBlock : kBlock;
}

// One in calls of up to kFewRows rows. Four for many rows of few heads. Two where keys are split, 16 bytes a
// slot as a rule: lanes of two tokens fill whole sectors if their slots are neighbours; where a block has
// threads for more rows than k and v have (queries alone have none); and in extended calls of many rows.
int tokens_per_block(const RopeCacheParams& p, const LaunchPlan& plan, int rows) {
  // The tokens of a warp go through the sum of a norm together (row_sum.cuh): KV-only rows do not.
  const bool fits_warp =
      !is_normed(p) || (2 * plan.threads_per_row <= kWarp && p.num_kv_rows == p.num_tokens);
  if (p.num_kv_rows <= kFewRows || rows == 1 || !fits_warp) return 1;
  if (has_few_heads(p) && rows >= 4 && 4 * plan.threads_per_row <= kWarp) return 4;
  return is_split(p) || p.num_kv_heads < rows || (is_many(p) && is_extended(plan.form)) ? 2 : 1;
}

int rows_per_thread(const RopeCacheParams& p, const LaunchPlan& plan) {
  if (p.num_kv_rows <= kFewRows) return 1;
  if (is_many(p)) return is_extended(plan.form) ? 8 : 4;
  const int64_t slices = int64_t{plan.threads_per_row} * (p.num_q_heads + 2 * p.num_kv_heads);
  return p.num_kv_rows * slices <= kThreadsAtOnce ? 1 : 2;
}

void plan_rows(const RopeCacheParams& p, LaunchPlan& plan) {
  plan.threads_per_row = slices_of_row(p, plan.vector_width);
  if (plan.keeps_last_of_slot || is_normed(p))
    plan.threads_per_row = power_of_two_of_threads(plan.threads_per_row);
  const int rows = std::max(1, threads_per_block(p, plan) / plan.threads_per_row);
  plan.tokens_per_block = tokens_per_block(p, plan, rows);
  plan.rows_at_once = std::min(rows / plan.tokens_per_block, kMaxRowsAtOnce);
  plan.distances_in_row =
      static_cast<uint32_t>((std::min(kWarp, plan.threads_per_row) - 1) * plan.tokens_per_block);
  const int seen_by_warp = kWarp * later_rows_per_thread(vector_bytes(p, plan));
  plan.num_lookers = p.num_kv_rows - 1 <= seen_by_warp ? kWarp : plan.num_threads();
  const int per_thread = rows_per_thread(p, plan);
  divide_rows(p.num_q_heads, plan.rows_at_once * per_thread, &plan.q_blocks, &plan.rows_per_q_block);
  const bool halves_kv_rows = is_thin(p) && (plan.values_are_apart || plan.threads_per_row >= kWarp);
  const int kv_rows = halves_kv_rows ? (plan.rows_at_once + 1) / 2 : plan.rows_at_once;
  divide_rows(p.num_kv_heads, kv_rows * per_thread, &plan.kv_blocks, &plan.rows_per_kv_block);
}

void plan_tiles(const RopeCacheParams& p, LaunchPlan& plan) {
  const int cache_size = size_of(p.cache_dtype), run = 16 / cache_size;
  const int64_t tiles = (p.num_kv_rows + kTileTokens - 1) / kTileTokens;
  plan.num_tiles = Divisor<uint32_t>(static_cast<uint32_t>(tiles));
  while (plan.tile_parts_log2 < kMaxTilePartsLog2 &&
         tiles * p.num_kv_heads << (plan.tile_parts_log2 + 1) <= kTileBlocks)
    ++plan.tile_parts_log2;
  const int pair = 2 * plan.vector_width;
  plan.tile_dims = ceil_div(ceil_div(p.v_head_size, 1 << plan.tile_parts_log2), pair) * pair;
  plan.parts_per_tile_block = static_cast<int>(plan.grid_x(p.num_kv_rows) / tiles);
  plan.tile_blocks = ceil_div(p.num_kv_heads << plan.tile_parts_log2, plan.parts_per_tile_block);
  plan.row_threads = Divisor<uint32_t>(static_cast<uint32_t>(plan.threads_per_row));
  // Whole words, an odd number of them: rows start in different banks of shared memory.
  plan.tile_pitch = (ceil_div(plan.tile_dims * cache_size, 4) | 1) * 4 / cache_size;
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
  plan.keeps_last_of_slot = p.has_cache && p.num_kv_rows <= kFewRows && p.slot_mapping.size > 1;
  plan.form = form_with(p, plan.vector_width);
  plan.values_are_apart = p.has_cache && !p.value_cache.layout.has_contiguous_dims(2);
  plan.values_are_tiled = plan.values_are_apart && takes_tiles(p);
  plan_rows(p, plan);
  plan.q_heads_per_group = Divisor<uint32_t>(std::max(1, p.num_q_heads / std::max(1, p.num_kv_heads)));
  if (plan.values_are_tiled) plan_tiles(p, plan);
  return plan;
}

}  // namespace kvrope
