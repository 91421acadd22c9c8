// The vector width and the grid of a launch, and the slices that its threads take. Addresses are numbers
// here: nothing is dereferenced.
#include "launch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "slice_dims.cuh"

namespace kvrope {
namespace {

// ---- Vector width.

void* at_address(int64_t bytes) {
  return reinterpret_cast<void*>(int64_t{1} << 40 | bytes);
}
int64_t address_of(const void* data) {
  return reinterpret_cast<int64_t>(data);
}

// Contiguous bf16 tensors, flash caches, NeoX over the whole head, an fp32 half-width table: everything
// allows 8.
RopeCacheParams wide_params() {
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

void use_split_key_cache(RopeCacheParams& p, int x) {
  CacheLayout& layout = p.key_cache.layout;
  layout.head_stride = p.head_size * p.block_size.divisor;
  layout.dim_outer_stride = p.block_size.divisor * x;
  layout.offset_outer_stride = x;
  layout.dim_inner_stride = 1;
  layout.dim_split_log2 = x == 16 ? 4 : x == 8 ? 3 : x == 4 ? 2 : x == 2 ? 1 : 0;
}

void use_split_value_cache(RopeCacheParams& p) {
  CacheLayout& layout = p.value_cache.layout;
  layout.head_stride = p.v_head_size * p.block_size.divisor;
  layout.dim_outer_stride = p.block_size.divisor;
  layout.offset_outer_stride = 1;
}

struct WidthCase {
  std::string name;
  int width;
  std::function<void(RopeCacheParams&)> change;
};

std::ostream& operator<<(std::ostream& out, const WidthCase& c) {
  return out << c.name;
}

using P = RopeCacheParams;
const WidthCase kWidthCases[] = {
    {"all_aligned", 8, [](P&) {}},
    {"fp16", 8, [](P& p) { p.dtype = p.cache_dtype = DType::fp16; }},
    {"fp32", 4, [](P& p) { p.dtype = p.cache_dtype = DType::fp32; }},
    {"fp8_cache", 8, [](P& p) { p.cache_dtype = DType::fp8_e4m3; }},
    {"fp8_cache_at_8_bytes", 8,
     [](P& p) { p.cache_dtype = DType::fp8_e4m3, p.key_cache.data = at_address(8); }},
    {"fp8_cache_at_4_bytes", 4,
     [](P& p) { p.cache_dtype = DType::fp8_e5m2, p.key_cache.data = at_address(4); }},
    {"q_off_by_one_element", 1, [](P& p) { p.q.data = at_address(2); }},
    {"q_out_off_by_two_elements", 2, [](P& p) { p.q_out.data = at_address(4); }},
    {"k_off_by_four_elements", 4, [](P& p) { p.k.data = at_address(8); }},
    {"v_off_by_one_element", 1, [](P& p) { p.v.data = at_address(2); }},
    {"k_out_token_stride", 2, [](P& p) { p.k_out.token_stride += 2; }},
    {"zeros_out_head_stride", 4, [](P& p) { p.zeros_out.head_stride += 4; }},
    {"absent_k_out_does_not_matter", 8,
     [](P& p) {
       p.k_out = {nullptr, 1, 1, 3};
     }},
    {"q_dim_stride", 1, [](P& p) { p.q.dim_stride = 2; }},
    {"equal_rows_by_stride_zero", 8, [](P& p) { p.k.token_stride = p.v.head_stride = 0; }},
    {"key_block_stride", 1, [](P& p) { p.key_cache.layout.block_stride += 1; }},
    {"value_offset_stride", 4, [](P& p) { p.value_cache.layout.offset_outer_stride += 4; }},
    {"key_cache_dim_stride", 1, [](P& p) { p.key_cache.layout.dim_outer_stride = 2; }},
    {"rotary_dim_16", 8, [](P& p) { p.rotary_dim = 16; }},
    {"rotary_dim_8", 4, [](P& p) { p.rotary_dim = 8; }},
    {"rotary_dim_2", 1, [](P& p) { p.rotary_dim = 2; }},
    {"rotary_dim_126", 1, [](P& p) { p.rotary_dim = 126; }},
    {"rotary_offset_4", 4, [](P& p) { p.rotary_dim = 64, p.rotary_dim_offset = 4; }},
    {"rotary_offset_odd", 1, [](P& p) { p.rotary_dim = 64, p.rotary_dim_offset = 33; }},
    {"head_size_130", 1, [](P& p) { p.head_size = 130, p.rotary_dim = 126; }},
    {"odd_value_head_size", 1, [](P& p) { p.v_head_size = 127; }},
    {"table_off_by_one_float", 1, [](P& p) { p.cos_sin.data = at_address(4); }},
    {"table_off_by_one_half", 1, [](P& p) { p.cos_sin.dtype = DType::fp16, p.cos_sin.data = at_address(2); }},
    {"table_row_stride", 2, [](P& p) { p.cos_sin.row_stride = 130; }},
    {"table_column_stride", 1, [](P& p) { p.cos_sin.column_stride = 2; }},
    {"split_key_x8", 8, [](P& p) { use_split_key_cache(p, 8); }},
    {"split_key_x16", 8, [](P& p) { use_split_key_cache(p, 16); }},
    {"split_key_x4", 4, [](P& p) { use_split_key_cache(p, 4); }},
    {"split_key_x1", 1, [](P& p) { use_split_key_cache(p, 1); }},
    {"split_key_group_stride", 2,
     [](P& p) { use_split_key_cache(p, 8), p.key_cache.layout.dim_outer_stride += 2; }},
    {"split_value_is_no_limit", 8,
     [](P& p) { use_split_value_cache(p), p.value_cache.data = at_address(2); }},
    {"q_token_stride_of_33_bits", 1, [](P& p) { p.q.token_stride = int64_t{1} << 32; }},
    {"k_out_head_stride_of_32_bits", 1, [](P& p) { p.k_out.head_stride = int64_t{1} << 31; }},
    {"v_token_stride_of_31_bits", 8, [](P& p) { p.v.token_stride = (int64_t{1} << 31) - 8; }},
    {"key_block_stride_of_33_bits", 1, [](P& p) { p.key_cache.layout.block_stride = int64_t{1} << 32; }},
    {"value_offset_stride_of_33_bits", 1,
     [](P& p) { p.value_cache.layout.offset_outer_stride = int64_t{1} << 32; }},
    {"slots_of_32_bits", 1, [](P& p) { p.num_slots = int64_t{1} << 31; }},
    {"slots_of_31_bits", 8, [](P& p) { p.num_slots = (int64_t{1} << 31) - 1; }},
    {"table_rows_of_33_bits", 1, [](P& p) { p.cos_sin.num_rows = int64_t{1} << 32; }},
    {"table_row_stride_of_33_bits", 1, [](P& p) { p.cos_sin.row_stride = int64_t{1} << 32; }},
    {"window_table_of_33_bits", 1,
     [](P& p) { p.has_swa = true, p.swa_slot_mapping.size = int64_t{1} << 32; }},
    {"slot_stride_of_33_bits", 1, [](P& p) { p.slot_mapping.stride = int64_t{1} << 32; }},
    {"weights_of_16_bits", 8,
     [](P& p) {
       p.q_weight = p.k_weight = {at_address(0), 1, false};
     }},
    {"weights_at_8_bytes", 4,
     [](P& p) {
       p.k_weight = {at_address(8), 1, false};
     }},
    {"weights_of_fp32", 8,
     [](P& p) {
       p.q_weight = {at_address(16), 1, true};
     }},
    {"weights_of_fp32_at_8_bytes", 2,
     [](P& p) {
       p.q_weight = {at_address(8), 1, true};
     }},
    {"strided_weights", 1,
     [](P& p) {
       p.q_weight = {at_address(0), 2, true};
     }},
    {"normed_head_without_vectors_in_pairs", 4,
     [](P& p) {
       p.head_size = 136, p.rotary_dim = 128;
       p.k_weight = {at_address(0), 1, false};
     }},
    {"no_cache_is_no_limit", 8, [](P& p) { p.has_cache = false, p.key_cache = {}; }},
};

class WidestVector : public testing::TestWithParam<WidthCase> {};

TEST_P(WidestVector, Is) {
  RopeCacheParams params = wide_params();
  GetParam().change(params);
  EXPECT_EQ(widest_vector(params), GetParam().width);
}

INSTANTIATE_TEST_SUITE_P(Cases, WidestVector, testing::ValuesIn(kWidthCases),
                         [](const auto& info) { return info.param.name; });

// Whether the `width` elements from each multiple of width are neighbours and aligned as one vector.
testing::AssertionResult are_vectors(const std::function<int64_t(int)>& element_address, int size, int width,
                                     int item_bytes) {
  for (int first = 0; first < size; first += width) {
    if (element_address(first) % (width * item_bytes) != 0)
      return testing::AssertionFailure() << "unaligned " << first;
    for (int j = 1; j < width; ++j) {
      if (element_address(first + j) != element_address(first) + j * item_bytes) {
        return testing::AssertionFailure() << "not neighbours from " << first;
      }
    }
  }
  return testing::AssertionSuccess();
}

void expect_row_vectors(const HeadRows& rows, int size, int width, DType dtype) {
  const int bytes = size_of(dtype);
  for (int64_t token = 0; token < 3; ++token) {
    for (int64_t head = 0; head < 3; ++head) {
      const int64_t row = token * rows.token_stride + head * rows.head_stride;
      const auto address = [&](int d) { return address_of(rows.data) + (row + d * rows.dim_stride) * bytes; };
      ASSERT_TRUE(are_vectors(address, size, width, bytes));
    }
  }
}

void expect_cache_vectors(const PagedCache& cache, int size, int width, DType dtype) {
  const int bytes = size_of(dtype);
  for (int64_t block = 0; block < 2; ++block) {
    for (int64_t offset = 0; offset < 3; ++offset) {
      for (int head = 0; head < 2; ++head) {
        const int64_t row = cache.layout.row_offset(block, offset, head);
        const auto address = [&](int d) {
          return address_of(cache.data) + (row + cache.layout.dim_offset(d)) * bytes;
        };
        ASSERT_TRUE(are_vectors(address, size, width, bytes));
      }
    }
  }
}

// A thread reads its columns in vectors of at most 16 bytes; GPT-J reads half as many of a half-width table.
void expect_table_vectors(const RopeCacheParams& p, int width) {
  const int columns = p.cos_sin.is_full_width ? 2 * p.rotary_dim : p.rotary_dim;
  const int bytes = size_of(p.cos_sin.dtype);
  const int asked = !p.is_neox && !p.cos_sin.is_full_width ? std::max(width / 2, 1) : width;
  const int read = std::min(asked, 16 / bytes);
  for (int64_t position = 0; position < 3; ++position) {
    const auto address = [&](int column) {
      return address_of(p.cos_sin.data) +
             (position * p.cos_sin.row_stride + column * p.cos_sin.column_stride) * bytes;
    };
    ASSERT_TRUE(are_vectors(address, columns, read, bytes));
  }
}

// Random strides, addresses and sizes, mostly of the aligned kind: what is chosen is always possible.
class RandomParams {
 public:
  explicit RandomParams(uint32_t seed) : random_(seed) {}

  RopeCacheParams draw() {
    alignment_ = one_of({1, 2, 4, 8, 8, 8, 8, 16});
    RopeCacheParams p = wide_params();
    p.dtype = static_cast<DType>(one_of({0, 1, 2, 2}));
    p.cache_dtype = one_of({0, 1}) ? p.dtype : static_cast<DType>(one_of({3, 4}));
    p.head_size = std::max(2, multiple(32)) / 2 * 2;
    p.v_head_size = multiple(32);
    p.rotary_dim = std::clamp(2 * multiple(16), 2, p.head_size);
    p.rotary_dim_offset = one_of({0, 0, p.head_size - p.rotary_dim, (p.head_size - p.rotary_dim) / 2});
    p.is_neox = one_of({0, 1});
    p.cos_sin.is_full_width = one_of({0, 1});
    for (HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out, &p.v}) {
      *rows = {address(size_of(p.dtype)), multiple(999), multiple(999),
               one_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2})};
    }
    p.cos_sin.dtype = static_cast<DType>(one_of({0, 1, 2}));
    p.cos_sin.data = address(size_of(p.cos_sin.dtype));
    p.cos_sin.row_stride = multiple(999);
    for (PagedCache* cache : {&p.key_cache, &p.value_cache}) *cache = draw_cache(size_of(p.cache_dtype));
    return p;
  }

 private:
  PagedCache draw_cache(int bytes) {
    const int split = one_of({0, 0, 2, 3, 4});
    const bool splits_dim = one_of({0, 1});
    return {address(bytes),
            {.block_stride = multiple(9999),
             .head_stride = multiple(999),
             .offset_outer_stride = multiple(999),
             .offset_inner_stride = multiple(9),
             .dim_outer_stride = one_of({1, 1, multiple(16)}),
             .dim_inner_stride = one_of({1, 1, 1, 3}),
             .offset_split_log2 = splits_dim ? 0 : split,
             .dim_split_log2 = splits_dim ? split : 0}};
  }

  int one_of(const std::vector<int>& values) { return values[random_() % values.size()]; }
  int multiple(int up_to) { return alignment_ * (1 + random_() % up_to); }
  void* address(int bytes) { return at_address(int64_t{bytes} * multiple(99)); }

  std::mt19937 random_;
  int alignment_ = 1;
};

TEST(WidestVector, NeverBreaksAVector) {
  RandomParams random(11);
  std::map<int, int> num_of_width;
  for (int round = 0; round < 20000; ++round) {
    const RopeCacheParams p = random.draw();
    const int width = widest_vector(p);
    ++num_of_width[width];
    ASSERT_TRUE(width == 1 || width == 2 || width == 4 || width == 8);
    ASSERT_LE(width * size_of(p.dtype), 16);
    ASSERT_EQ(p.rotary_dim % (2 * width), 0);
    ASSERT_EQ(p.rotary_dim_offset % width, 0);
    ASSERT_EQ(p.head_size % width, 0);
    ASSERT_EQ(p.v_head_size % width, 0);
    for (const HeadRows* rows : {&p.q, &p.q_out, &p.zeros_out, &p.k, &p.k_out}) {
      if (width > 1) expect_row_vectors(*rows, p.head_size, width, p.dtype);
    }
    if (width > 1) {
      expect_row_vectors(p.v, p.v_head_size, width, p.dtype);
      expect_table_vectors(p, width);
    }
    ASSERT_TRUE(p.key_cache.layout.has_contiguous_dims(width));
    for (const auto& [cache, size] :
         {std::pair(p.key_cache, p.head_size), std::pair(p.value_cache, p.v_head_size)}) {
      if (cache.layout.has_contiguous_dims(width)) expect_cache_vectors(cache, size, width, p.cache_dtype);
    }
    if (HasFatalFailure()) FAIL() << "round " << round << " width " << width;
  }
  for (const int width : {1, 2, 4, 8}) EXPECT_GT(num_of_width[width], 100) << "width " << width;
}

// ---- Grid.

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
  ASSERT_GE(plan.kv_rows_at_once, 1);
  ASSERT_LE(plan.kv_rows_at_once, plan.rows_at_once);
  ASSERT_EQ(plan.keeps_last_of_slot, plan.num_watchers() > 0);
  if (plan.keeps_last_of_slot) {
    ASSERT_EQ(plan.tokens_per_block, 1) << "the watchers of a block watch one slot";
    ASSERT_EQ(plan.kv_rows_at_once * plan.threads_per_row % 32, 0)
        << "a warp serves rows or watches, not both";
  }
  ASSERT_GE(plan.threads_per_row, width == 8   ? most_slices_of_a_row<8>(p)
                                  : width == 4 ? most_slices_of_a_row<4>(p)
                                  : width == 2 ? most_slices_of_a_row<2>(p)
                                               : most_slices_of_a_row<1>(p));
  if (!plan.values_are_tiled) return;
  ASSERT_GE(plan.num_threads(), kTileTokens) << "a thread finds the place of a token";
  ASSERT_GE(plan.heads_per_tile_block, 1);
  ASSERT_GE(int64_t{plan.heads_per_tile_block} * plan.tile_blocks, p.num_kv_heads);
  ASSERT_GE(plan.tile_pitch, p.v_head_size);
  const int pitch_bytes = plan.tile_pitch * size_of(p.cache_dtype);
  ASSERT_EQ(pitch_bytes % 4, 0);
  ASSERT_LE(kTileTokens * pitch_bytes, kSharedMemoryBytes - kTileTokens * 8);
}

TEST(PlanLaunch, GridIsWithinLimitsForEveryShape) {
  for (const int64_t num_tokens : {int64_t{1}, int64_t{2}, int64_t{128}, int64_t{129}, int64_t{256},
                                   int64_t{257}, int64_t{2048}, int64_t{65536}, kMaxGridX}) {
    for (const int kv_heads : {1, 3, 8, 128, 32767}) {
      for (const int group : {1, 2, 7, 16, 71}) {
        if (kv_heads * group > 65535) continue;
        for (const int head_size : {2, 4, 16, 46, 64, 80, 96, 128, 192, 250, 256, 384, 510, 512}) {
          for (int variant = 0; variant < 16; ++variant) {
            RopeCacheParams p = wide_params();
            p.num_tokens = p.num_kv_rows = p.slot_mapping.size = num_tokens;
            p.num_kv_heads = kv_heads;
            p.num_q_heads = kv_heads * group;
            p.head_size = p.v_head_size = p.rotary_dim = head_size;
            p.has_cache = variant % 2 == 0;
            if (variant & 2) use_split_value_cache(p);
            if (variant & 4) p.q.data = at_address(2);  // single elements: the most threads a row
            if (variant & 8) use_split_key_cache(p, 8);
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
  p.num_tokens = p.num_kv_rows = p.slot_mapping.size = 256;
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
    p.num_tokens = p.num_kv_rows = p.slot_mapping.size = rows;
    p.k_weight = {at_address(0), 1, false};
    change(p);
    return plan_launch(p);
  };
  const auto resize = [](RopeCacheParams& p, int head_size) {
    p.head_size = p.v_head_size = p.rotary_dim = head_size;
  };
  const auto expect = [](const LaunchPlan& plan, bool is_extended, int width, int threads) {
    EXPECT_FALSE(plan.is_plain);
    EXPECT_EQ(plan.is_extended, is_extended);
    EXPECT_EQ(plan.vector_width, width);
    EXPECT_EQ(plan.threads_per_row, threads);
  };
  expect(plan_of(5, [](auto&) {}), true, 4, 16);
  const LaunchPlan many = plan_of(5000, [](auto&) {});
  expect(many, true, 8, 8);
  EXPECT_EQ(many.num_threads(), 64);
  EXPECT_EQ(many.tokens_per_block, 2);
  const auto tokens_per_block = [&](int64_t num_kv_only) {
    const auto change = [&](RopeCacheParams& p) {
      use_split_value_cache(p);
      p.match_unfused = true;
      p.num_tokens -= num_kv_only;
    };
    return plan_of(5000, change).tokens_per_block;
  };
  EXPECT_EQ(tokens_per_block(0), 2);
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

// Each of what few calls ask for makes a call one that is not plain.
TEST(PlanLaunch, PlainCalls) {
  const auto plain_params = [] {
    RopeCacheParams p = wide_params();
    p.zeros_out.data = nullptr;
    p.slot_mapping.size = p.num_kv_rows;
    return p;
  };
  EXPECT_TRUE(plan_launch(plain_params()).is_plain);
  float scale = 1;
  const std::vector<std::pair<const char*, std::function<void(RopeCacheParams&)>>> changes = {
      {"rotation alone", [](auto& p) { p.has_cache = false; }},
      {"window", [](auto& p) { p.has_swa = true; }},
      {"offsets", [](auto& p) { p.has_offs = true; }},
      {"zeros_out", [](auto& p) { p.zeros_out = p.q_out; }},
      {"no k_out", [](auto& p) { p.k_out.data = nullptr; }},
      {"match_unfused", [](auto& p) { p.match_unfused = true; }},
      {"full width", [](auto& p) { p.cos_sin.is_full_width = true; }},
      {"16-bit table", [](auto& p) { p.cos_sin.dtype = DType::bf16; }},
      {"partial rotation", [](auto& p) { p.rotary_dim = 64; }},
      {"value heads of another size", [](auto& p) { p.v_head_size = 64; }},
      {"KV-only rows", [](auto& p) { ++p.num_kv_rows, ++p.slot_mapping.size; }},
      {"short slot_mapping", [](auto& p) { --p.slot_mapping.size; }},
      {"scale of a 16-bit cache", [&](auto& p) { p.v_scale.data = &scale; }},
      {"single elements", [](auto& p) { p.q.data = at_address(2); }},
  };
  for (const auto& [name, change] : changes) {
    RopeCacheParams p = plain_params();
    change(p);
    EXPECT_FALSE(plan_launch(p).is_plain) << name;
  }
  RopeCacheParams p = plain_params();
  p.cache_dtype = DType::fp8_e4m3;
  p.k_scale.data = &scale;
  EXPECT_TRUE(plan_launch(p).is_plain) << "scales of an fp8 cache";
}

}  // namespace
}  // namespace kvrope
