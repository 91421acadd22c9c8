// The form and the grid of a launch, and the slices that its threads take.
#include "launch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "slice_dims.cuh"
#include "wide_params.h"

namespace kvrope {
namespace {

void set_rows(RopeCacheParams& p, int64_t rows) {
  p.num_tokens = p.num_kv_rows = p.slot_mapping.size = rows;
}

constexpr int64_t kMaxGridX = INT32_MAX, kMaxGridY = 65535, kMaxBlockZ = 64, kSharedMemoryBytes = 48 * 1024;

template <int kVec>
int most_slices_of_a_row(const RopeCacheParams& p) {
  int most = 0;
  for (const HeadShape& head : {HeadShape{p.head_size, p.rotary_dim, p.rotary_dim_offset},
                                HeadShape{p.head_size, 0, 0}, HeadShape{p.v_head_size, 0, 0}}) {
    int count = 0;
    while (slice_dims<kVec>(head, p.is_neox, count).has_lo) ++count;
    most = std::max(most, count);
  }
  return most;
}

void expect_valid_grid(const RopeCacheParams& p) {
  const LaunchPlan plan = plan_launch(p);
  const int width = plan.vector_width;
  ASSERT_TRUE(width == 1 || width == 2 || width == 4 || width == 8) << width;
  ASSERT_LE(width, widest_vector(p));
  ASSERT_LE(int64_t{plan.grid_x(p.num_kv_rows)}, kMaxGridX);
  ASSERT_GE(int64_t{plan.grid_x(p.num_kv_rows)} * plan.tokens_per_block, p.num_kv_rows);
  ASSERT_GE(plan.q_blocks, 1);
  ASSERT_GE(plan.kv_blocks, 1);
  ASSERT_GE(plan.q_blocks * plan.rows_per_q_block, p.num_q_heads);
  ASSERT_GE(plan.kv_blocks * plan.rows_per_kv_block, p.num_kv_heads);
  ASSERT_LE(plan.grid_y(p.has_cache), kMaxGridY);
  ASSERT_GE(plan.rows_at_once, 1);
  ASSERT_LE(plan.rows_at_once, kMaxBlockZ);
  ASSERT_LE(plan.tokens_per_block * plan.threads_per_row * plan.rows_at_once, kMaxThreadsPerBlock);
  if (plan.keeps_last_of_slot) {
    ASSERT_EQ(plan.tokens_per_block, 1) << "the threads of a block look for one slot";
    ASSERT_EQ(plan.num_threads() % kWarp, 0) << "all lanes vote";
    ASSERT_TRUE(plan.num_lookers == kWarp || plan.num_lookers == plan.num_threads());
    ASSERT_EQ(plan.num_lookers & (plan.num_lookers - 1), 0);
    ASSERT_GE(later_rows_per_thread(width * size_of(p.dtype)) * plan.num_lookers, p.num_kv_rows - 1)
        << "each later row has a thread";
  }
  ASSERT_GE(plan.threads_per_row, width == 8   ? most_slices_of_a_row<8>(p)
                                  : width == 4 ? most_slices_of_a_row<4>(p)
                                  : width == 2 ? most_slices_of_a_row<2>(p)
                                               : most_slices_of_a_row<1>(p));
  if (!plan.values_are_tiled) return;
  ASSERT_GE(plan.num_threads(), kTileTokens) << "a thread finds the place of a token";
  ASSERT_GE(plan.parts_per_tile_block, 1);
  ASSERT_GE(int64_t{plan.parts_per_tile_block} * plan.tile_blocks,
            int64_t{p.num_kv_heads} << plan.tile_parts_log2);
  ASSERT_GE(plan.tile_dims << plan.tile_parts_log2, p.v_head_size);
  ASSERT_GE(plan.tile_pitch, plan.tile_dims);
  if (plan.keeps_last_of_slot) {
    ASSERT_GE(later_rows_per_thread(width * size_of(p.dtype)) * plan.num_threads(), p.num_kv_rows - 1)
        << "each later row has a thread";
  }
  const int pitch_bytes = plan.tile_pitch * size_of(p.cache_dtype);
  ASSERT_EQ(pitch_bytes % 4, 0);
  const int64_t fixed_bytes =
      kTileTokens * 12 + kMaxThreadsPerBlock / kWarp * 4;  // value_tile.cuh, row_sum.cuh
  ASSERT_LE(kTileTokens * pitch_bytes, kSharedMemoryBytes - fixed_bytes);
}

TEST(PlanLaunch, GridIsWithinLimitsForEveryShape) {
  for (const int64_t num_tokens : {int64_t{1}, int64_t{2}, int64_t{128}, int64_t{129}, int64_t{256},
                                   int64_t{257}, int64_t{2048}, int64_t{65536}, kMaxGridX}) {
    for (const int kv_heads : {1, 3, 8, 128, 32767}) {
      for (const int group : {1, 2, 7, 16, 71}) {
        if (kv_heads * group > 65535) continue;
        for (const int head_size : {2, 4, 16, 46, 64, 80, 96, 128, 192, 250, 256, 384, 510, 512}) {
          for (int variant = 0; variant < 32; ++variant) {
            RopeCacheParams p = wide_params();
            set_rows(p, num_tokens);
            p.num_kv_heads = kv_heads;
            p.num_q_heads = kv_heads * group;
            p.head_size = p.v_head_size = p.rotary_dim = head_size;
            p.has_cache = variant % 2 == 0;
            if (variant & 2) use_split_value_cache(p);
            if (variant & 4) p.q.data = at_address(2);  // single elements: the most threads a row
            if (variant & 8) use_split_key_cache(p, 8);
            if (variant & 16) p.zeros_out.data = nullptr;  // plain
            expect_valid_grid(p);
            if (HasFatalFailure()) {
              FAIL() << "T " << num_tokens << " QH " << p.num_q_heads << " KH " << kv_heads << " D "
                     << head_size << " variant " << variant;
            }
          }
        }
      }
    }
  }
}

TEST(PlanLaunch, RotationOfAPartOfTheHead) {
  for (int rotary_dim = 2; rotary_dim <= 126; rotary_dim += 2) {
    RopeCacheParams p = wide_params();
    p.rotary_dim = rotary_dim;
    p.rotary_dim_offset = 128 - rotary_dim;
    expect_valid_grid(p);
  }
}

TEST(PlanLaunch, MostHeadsThatAreAllowed) {
  RopeCacheParams p = wide_params();
  p.q.data = at_address(2);
  p.num_q_heads = 65535;
  p.num_kv_heads = 32767;
  p.head_size = p.v_head_size = p.rotary_dim = 512;
  expect_valid_grid(p);
}

// A cache without blocks may claim any block size.
TEST(PlanLaunch, EmptyCacheOfHugeBlocks) {
  for (const int64_t block_size : {int64_t{1} << 31, int64_t{1} << 32, (int64_t{1} << 40) + 16}) {
    RopeCacheParams p = wide_params();
    p.num_slots = 0;
    p.block_size = {block_size};
    expect_valid_grid(p);
  }
}

TEST(PlanLaunch, AShortValueHeadDoesNotHideALongKeyHead) {
  for (const auto& [head_size, v_head_size] : {std::pair(128, 8), std::pair(128, 512), std::pair(8, 512)}) {
    RopeCacheParams p = wide_params();
    p.head_size = p.rotary_dim = head_size;
    p.v_head_size = v_head_size;
    expect_valid_grid(p);
  }
}

TEST(PlanLaunch, TiledValuesAreThoseWithoutContiguousDims) {
  RopeCacheParams p = wide_params();
  p.num_tokens = p.num_kv_rows = 100000;
  EXPECT_FALSE(plan_launch(p).values_are_tiled);
  use_split_value_cache(p);
  EXPECT_TRUE(plan_launch(p).values_are_tiled);
  set_rows(p, 256);
  EXPECT_FALSE(plan_launch(p).values_are_tiled) << "few heads in all";
  p.num_kv_heads = 8;
  EXPECT_TRUE(plan_launch(p).values_are_tiled);
  p.cache_dtype = DType::fp8_e4m3;
  EXPECT_FALSE(plan_launch(p).values_are_tiled) << "fp8";
  p.cache_dtype = p.dtype;
  set_rows(p, 129);
  EXPECT_TRUE(plan_launch(p).values_are_tiled);
  set_rows(p, 128);
  EXPECT_FALSE(plan_launch(p).values_are_tiled) << "few rows";
  EXPECT_TRUE(plan_launch(p).values_are_apart);
  p.has_cache = false;
  EXPECT_FALSE(plan_launch(p).values_are_tiled);
}

TEST(PlanLaunch, RunsNeedAlignedVectorsOfSlots) {
  RopeCacheParams p = wide_params();
  p.num_tokens = p.num_kv_rows = 100000;
  use_split_value_cache(p);
  EXPECT_TRUE(plan_launch(p).stores_runs);
  p.value_cache.data = at_address(2);
  EXPECT_FALSE(plan_launch(p).stores_runs);
  p.value_cache.data = at_address(0);
  p.value_cache.layout.dim_outer_stride = 12;
  EXPECT_FALSE(plan_launch(p).stores_runs);
}

// Long vectors with a norm are for extended calls alone: elsewhere no code serves them.
TEST(PlanLaunch, NormedCalls) {
  const auto plan_of = [](int64_t rows, const std::function<void(RopeCacheParams&)>& change) {
    RopeCacheParams p = wide_params();
    p.zeros_out.data = nullptr;
    set_rows(p, rows);
    p.k_weight = {at_address(0), 1, false};
    change(p);
    return plan_launch(p);
  };
  const auto resize = [](RopeCacheParams& p, int head_size) {
    p.head_size = p.v_head_size = p.rotary_dim = head_size;
  };
  const auto expect = [](const LaunchPlan& plan, bool is_extended, int width, int threads) {
    EXPECT_EQ(plan.form, is_extended ? CallForm::extended : CallForm::general);
    EXPECT_EQ(plan.vector_width, width);
    EXPECT_EQ(plan.threads_per_row, threads);
  };
  expect(plan_of(5, [](auto&) {}), true, 4, 16);
  const LaunchPlan many = plan_of(5000, [](auto&) {});
  expect(many, true, 8, 8);
  EXPECT_EQ(many.num_threads(), 64);
  EXPECT_EQ(many.tokens_per_block, 4);
  const auto tokens_per_block = [&](int64_t num_kv_only) {
    const auto change = [&](RopeCacheParams& p) {
      use_split_value_cache(p);
      p.match_unfused = true;
      p.num_tokens -= num_kv_only;
    };
    return plan_of(5000, change).tokens_per_block;
  };
  EXPECT_EQ(tokens_per_block(0), 2) << "short vectors: four would not fit a warp";
  EXPECT_EQ(tokens_per_block(1), 1) << "two tokens of a warp, one of them not normed";
  expect(plan_of(5000, [](auto& p) { p.match_unfused = true; }), false, 4, 16);
  expect(plan_of(5, [&](auto& p) { resize(p, 512); }), true, 8, 32);
  expect(plan_of(5000, [&](auto& p) { resize(p, 96); }), false, 4, 16);  // 6 slices, no power of two
  expect(plan_of(5000, [&](auto& p) { resize(p, 96), p.k_weight = {}, p.pos_axis_stride = 5000; }), true, 8,
         6);
  const auto use_fp32 = [](RopeCacheParams& p) { p.dtype = p.cache_dtype = DType::fp32; };
  expect(plan_of(5000, use_fp32), false, 2, 32);
  expect(plan_of(5000, [](auto& p) { p.is_neox = false; }), false, 4, 16);
  expect(plan_of(5000, [&](auto& p) { use_fp32(p), resize(p, 512); }), false, 2, 128);
}

struct FormCase {
  const char* name;
  CallForm form;
  std::function<void(RopeCacheParams&)> change;
};

RopeCacheParams plain_params() {
  RopeCacheParams p = wide_params();
  p.zeros_out.data = nullptr;
  p.slot_mapping.size = p.num_kv_rows;
  return p;
}

// Each of what few calls ask for makes a call one that is not plain, and what fewer ask for one that is
// general.
TEST(PlanLaunch, FormsOfCalls) {
  static const float scale = 1;
  static const NormWeight norm = {at_address(0), 1, false};
  using P = RopeCacheParams;
  const std::vector<FormCase> cases = {
      {"nothing", CallForm::plain, [](P&) {}},
      {"GPT-J", CallForm::plain, [](P& p) { p.is_neox = false; }},
      {"fp32", CallForm::plain, [](P& p) { p.dtype = p.cache_dtype = DType::fp32; }},
      {"scale of an fp8 cache", CallForm::plain,
       [](P& p) { p.cache_dtype = DType::fp8_e4m3, p.k_scale.data = &scale; }},
      {"window", CallForm::usual, [](P& p) { p.has_swa = true; }},
      {"offsets", CallForm::usual, [](P& p) { p.has_offs = true; }},
      {"zeros_out", CallForm::usual, [](P& p) { p.zeros_out = p.q_out; }},
      {"no k_out", CallForm::usual, [](P& p) { p.k_out.data = nullptr; }},
      {"16-bit table", CallForm::usual, [](P& p) { p.cos_sin.dtype = DType::fp16; }},
      {"partial rotation", CallForm::usual, [](P& p) { p.rotary_dim = 64; }},
      {"value heads of another size", CallForm::usual, [](P& p) { p.v_head_size = 64; }},
      {"window in fp32", CallForm::general,
       [](P& p) { p.has_swa = true, p.dtype = p.cache_dtype = DType::fp32; }},
      {"offsets, vectors of 8 bytes", CallForm::general,
       [](P& p) { p.has_offs = true, p.q.data = at_address(8); }},
      {"vectors of 4 bytes", CallForm::general, [](P& p) { p.q.data = at_address(4); }},
      {"rotation alone", CallForm::general, [](P& p) { p.has_cache = false; }},
      {"match_unfused", CallForm::general, [](P& p) { p.match_unfused = true; }},
      {"full width", CallForm::general, [](P& p) { p.cos_sin.is_full_width = true; }},
      {"KV-only rows", CallForm::general, [](P& p) { ++p.num_kv_rows; }},
      {"short slot_mapping", CallForm::general, [](P& p) { --p.slot_mapping.size; }},
      {"scale of a 16-bit cache", CallForm::general, [](P& p) { p.v_scale.data = &scale; }},
      {"norm", CallForm::extended, [](P& p) { p.q_weight = norm; }},
      {"partial rotation with a norm", CallForm::extended_partial,
       [](P& p) { p.rotary_dim = 64, p.q_weight = norm; }},
      {"partial rotation of a later part with a norm", CallForm::general,
       [](P& p) { p.rotary_dim = p.rotary_dim_offset = 64, p.q_weight = norm; }},
      {"partial rotation on axes", CallForm::extended_partial,
       [](P& p) { p.rotary_dim = 64, p.pos_axis_stride = 5; }},
      {"partial rotation on axes, an odd number of vectors", CallForm::general,
       [](P& p) { p.rotary_dim = 64, p.head_size = p.v_head_size = 76, p.pos_axis_stride = 5; }},
      {"offsets with a norm", CallForm::general, [](P& p) { p.has_offs = true, p.q_weight = norm; }},
      {"single elements", CallForm::general, [](P& p) { p.q.data = at_address(2); }},
  };
  for (const FormCase& c : cases) {
    RopeCacheParams p = plain_params();
    c.change(p);
    const LaunchPlan plan = plan_launch(p);
    EXPECT_EQ(plan.form, c.form) << c.name;
    if (plan.form == CallForm::usual) {
      EXPECT_EQ(plan.vector_width, 8) << c.name;
    }
  }
}

RopeCacheParams params_of(int64_t rows, int q_heads, int kv_heads, int head_size) {
  RopeCacheParams p = plain_params();
  set_rows(p, rows);
  p.num_q_heads = q_heads;
  p.num_kv_heads = kv_heads;
  p.head_size = p.v_head_size = p.rotary_dim = head_size;
  return p;
}

// Where k and v have fewer heads than a block has threads for it has more tokens.
TEST(PlanLaunch, TokensOfABlock) {
  const auto tokens_of = [](int64_t rows, int kv_heads, int head_size) {
    return plan_launch(params_of(rows, 8 * kv_heads, kv_heads, head_size)).tokens_per_block;
  };
  EXPECT_EQ(tokens_of(256, 1, 128), 1);
  EXPECT_EQ(tokens_of(257, 1, 128), 2);
  EXPECT_EQ(tokens_of(2047, 1, 128), 2);
  EXPECT_EQ(tokens_of(2048, 1, 128), 4);
  EXPECT_EQ(tokens_of(2048, 2, 128), 2);
  EXPECT_EQ(tokens_of(4096, 2, 128), 4);
  EXPECT_EQ(tokens_of(16384, 3, 128), 2);
  EXPECT_EQ(tokens_of(16384, 8, 128), 2);
  EXPECT_EQ(tokens_of(16384, 16, 128), 1);
  EXPECT_EQ(tokens_of(4096, 1, 256), 2) << "four would not fit a warp";
  EXPECT_EQ(plan_launch(params_of(4096, 8, 1, 64)).num_threads(), 64);
  RopeCacheParams queries = params_of(300, 8, 0, 128);
  queries.has_cache = false;
  EXPECT_EQ(plan_launch(queries).tokens_per_block, 2) << "queries alone";
}

TEST(PlanLaunch, RowsOfAThread) {
  const auto rows_of = [](int64_t rows, int q_heads, int kv_heads) {
    const LaunchPlan plan = plan_launch(params_of(rows, q_heads, kv_heads, 128));
    return (plan.rows_per_q_block + plan.rows_at_once - 1) / plan.rows_at_once;
  };
  EXPECT_EQ(rows_of(256, 128, 8), 1);
  EXPECT_EQ(rows_of(384, 32, 8), 1);
  EXPECT_EQ(rows_of(385, 32, 8), 2);
  EXPECT_EQ(rows_of(600, 16, 4), 1);
  EXPECT_EQ(rows_of(2047, 32, 8), 2);
  EXPECT_EQ(rows_of(2048, 32, 8), 4);
}

// Few tiles are divided among the multiprocessors.
TEST(PlanLaunch, PartsOfATile) {
  const auto parts_of = [](int64_t rows, int kv_heads) {
    RopeCacheParams p = params_of(rows, kv_heads, kv_heads, 128);
    use_split_value_cache(p);
    return 1 << plan_launch(p).tile_parts_log2;
  };
  EXPECT_EQ(parts_of(129, 8), 4);
  EXPECT_EQ(parts_of(224, 8), 4);
  EXPECT_EQ(parts_of(225, 8), 2);
  EXPECT_EQ(parts_of(448, 8), 2);
  EXPECT_EQ(parts_of(449, 8), 1);
  EXPECT_EQ(parts_of(449, 1), 4);
}

// Where single elements are stored the fewest rows take more multiprocessors.
TEST(PlanLaunch, BlocksOfFewRows) {
  const auto threads_of = [](int64_t rows, const std::function<void(RopeCacheParams&)>& change) {
    RopeCacheParams p = plain_params();
    set_rows(p, rows);
    change(p);
    return plan_launch(p).num_threads();
  };
  const auto nothing = [](RopeCacheParams&) {};
  EXPECT_EQ(threads_of(32, nothing), 256);
  EXPECT_EQ(threads_of(128, nothing), 256);
  EXPECT_EQ(threads_of(129, nothing), 128);
  EXPECT_EQ(threads_of(32, use_split_value_cache), 64);
  EXPECT_EQ(threads_of(33, use_split_value_cache), 128);
  EXPECT_EQ(threads_of(32, [](RopeCacheParams& p) { p.has_offs = true; }), 128) << "long vectors";
}

}  // namespace
}  // namespace kvrope
