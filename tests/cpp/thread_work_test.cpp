// Every slice of every row of every token has one thread, and every part of every head of every tile one
// block. The device functions are compiled for the host, with the built-in variables of CUDA as plain ones
// (host_cuda.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "host_cuda.h"
#include "thread_work.cuh"
#include "value_tile.cuh"

namespace kvrope {
namespace {

// Sizes are all that a plan looks at here.
RopeCacheParams params_of(int64_t num_rows, int q_heads, int kv_heads, int head_size, bool is_split) {
  RopeCacheParams p = {};
  p.num_tokens = p.num_kv_rows = num_rows;
  p.num_q_heads = q_heads;
  p.num_kv_heads = kv_heads;
  p.head_size = p.v_head_size = p.rotary_dim = head_size;
  p.block_size = {16};
  p.num_slots = 64;
  p.dtype = p.cache_dtype = DType::bf16;
  p.q.dim_stride = p.k.dim_stride = p.v.dim_stride = 1;
  p.has_cache = p.is_neox = true;
  p.slot_mapping.size = num_rows;
  p.key_cache.layout.dim_outer_stride = 1;
  p.value_cache.layout.dim_outer_stride = 1;
  if (is_split) {
    p.key_cache.layout.dim_outer_stride = 128;
    p.key_cache.layout.dim_inner_stride = 1;
    p.key_cache.layout.dim_split_log2 = 3;
    p.value_cache.layout.dim_outer_stride = 16;
  }
  return p;
}

void enter_block(const LaunchPlan& plan) {
  blockDim = {static_cast<unsigned>(plan.tokens_per_block), static_cast<unsigned>(plan.threads_per_row),
              static_cast<unsigned>(plan.rows_at_once)};
}

// How often each (token, head, slice) is served by blocks 0 .. num_blocks - 1.
void expect_each_slice_once(const RopeCacheParams& p, const LaunchPlan& plan, int num_blocks,
                            int rows_per_block, int num_heads) {
  enter_block(plan);
  std::vector<int> num_threads(p.num_kv_rows * num_heads * plan.threads_per_row, 0);
  for (int block = 0; block < num_blocks; ++block) {
    for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(plan.grid_x(p.num_kv_rows)); ++blockIdx.x) {
      for (threadIdx.z = 0; threadIdx.z < blockDim.z; ++threadIdx.z) {
        for (threadIdx.y = 0; threadIdx.y < blockDim.y; ++threadIdx.y) {
          for (threadIdx.x = 0; threadIdx.x < blockDim.x; ++threadIdx.x) {
            const auto work = rows_of_thread<int64_t>(block, rows_per_block, num_heads);
            const auto compact = rows_of_thread<uint32_t>(block, rows_per_block, num_heads);
            ASSERT_EQ(int64_t{compact.token}, work.token);
            ASSERT_EQ(compact.head, work.head);
            ASSERT_LE(work.end, num_heads);
            if (work.token >= p.num_kv_rows) continue;
            for (int head = work.head; head < work.end; head += work.step) {
              ++num_threads[(work.token * num_heads + head) * plan.threads_per_row + work.slice];
            }
          }
        }
      }
    }
  }
  ASSERT_EQ(*std::min_element(num_threads.begin(), num_threads.end()), 1) << "a slice is left out";
  ASSERT_EQ(*std::max_element(num_threads.begin(), num_threads.end()), 1) << "a slice is served twice";
}

void expect_each_tile_once(const RopeCacheParams& p, const LaunchPlan& plan) {
  std::vector<int> num_blocks(p.num_kv_rows * p.num_kv_heads * p.v_head_size, 0);
  for (int block = 0; block < plan.tile_blocks; ++block) {
    for (blockIdx.x = 0; blockIdx.x < static_cast<unsigned>(plan.grid_x(p.num_kv_rows)); ++blockIdx.x) {
      const ValueTile<int64_t> tile = tile_of_block<int64_t>(p, plan, block);
      ASSERT_LE(tile.num_tokens, kTileTokens);
      ASSERT_LE(tile.num_dims, plan.tile_dims);
      for (int i = 0; i < tile.num_tokens; ++i) {
        ASSERT_LT(tile.first_token + i, p.num_kv_rows);
        const int64_t row = (tile.first_token + i) * p.num_kv_heads + tile.head;
        for (int j = 0; j < tile.num_dims; ++j) ++num_blocks[row * p.v_head_size + tile.first_dim + j];
      }
    }
  }
  ASSERT_EQ(*std::min_element(num_blocks.begin(), num_blocks.end()), 1) << "an element of v is left out";
  ASSERT_EQ(*std::max_element(num_blocks.begin(), num_blocks.end()), 1) << "an element of v is served twice";
}

TEST(ThreadWork, EachSliceHasOneThread) {
  for (const bool is_split : {false, true}) {
    for (const int64_t num_rows : {1, 2, 17, 128, 129, 256, 257, 2049, 4097}) {
      for (const auto& [q_heads, kv_heads] :
           {std::pair(1, 1), std::pair(3, 3), std::pair(32, 8), std::pair(71, 1)}) {
        for (const int head_size : {2, 66, 128, 250, 512}) {
          if (num_rows > 2000 && head_size > 128) continue;  // the same plan, and long to walk
          const RopeCacheParams p = params_of(num_rows, q_heads, kv_heads, head_size, is_split);
          const LaunchPlan plan = plan_launch(p);
          const bool has_many_values = num_rows > 256 || (num_rows > 128 && num_rows * kv_heads > 1024);
          ASSERT_EQ(plan.values_are_tiled, is_split && has_many_values);
          expect_each_slice_once(p, plan, plan.q_blocks, plan.rows_per_q_block, q_heads);
          expect_each_slice_once(p, plan, plan.kv_blocks, plan.rows_per_kv_block, kv_heads);
          if (plan.values_are_tiled) expect_each_tile_once(p, plan);
          if (HasFatalFailure()) {
            FAIL() << "Tk " << num_rows << " QH " << q_heads << " KH " << kv_heads << " D " << head_size
                   << (is_split ? " split" : " flash");
          }
        }
      }
    }
  }
}

// A half has no blocks for the rows that it lacks, and all those of the others.
TEST(ThreadWork, Halves) {
  for (const int64_t num_rows : {1, 128, 257}) {
    RopeCacheParams p = params_of(num_rows, 71, 0, 128, false);
    p.has_cache = false;
    p.v_head_size = 0;
    LaunchPlan plan = plan_launch(p);
    EXPECT_EQ(plan.kv_blocks, 0);
    EXPECT_EQ(plan.grid_y(p.has_cache), plan.q_blocks);
    expect_each_slice_once(p, plan, plan.q_blocks, plan.rows_per_q_block, 71);

    for (const bool is_split : {false, true}) {
      p = params_of(num_rows, 0, 3, 128, is_split);
      p.num_tokens = p.rotary_dim = 0;
      plan = plan_launch(p);
      EXPECT_EQ(plan.q_blocks, 0);
      EXPECT_EQ(plan.grid_y(p.has_cache),
                plan.kv_blocks + (plan.values_are_tiled ? plan.tile_blocks : plan.kv_blocks));
      expect_each_slice_once(p, plan, plan.kv_blocks, plan.rows_per_kv_block, 3);
      if (plan.values_are_tiled) expect_each_tile_once(p, plan);
    }
  }
}

// In grids too large to walk, the block that should serve a row of v is looked up and asked.
TEST(ThreadWork, TilesOfBillionsOfTokens) {
  for (const int64_t num_rows : {int64_t{1} << 20, (int64_t{1} << 28) + 5, int64_t{INT32_MAX}}) {
    for (const int kv_heads : {1, 2, 8, 32, 128}) {
      const RopeCacheParams p = params_of(num_rows, kv_heads, kv_heads, 128, true);
      const LaunchPlan plan = plan_launch(p);
      for (const int64_t token : {int64_t{0}, int64_t{17}, num_rows / 3, num_rows - 2, num_rows - 1}) {
        for (const int head : {0, kv_heads / 2, kv_heads - 1}) {
          const int64_t tiles = (num_rows + kTileTokens - 1) / kTileTokens;
          const int block = head / plan.parts_per_tile_block;
          blockIdx.x = static_cast<unsigned>(head % plan.parts_per_tile_block * tiles + token / kTileTokens);
          ASSERT_LT(block, plan.tile_blocks);
          ASSERT_LT(blockIdx.x, static_cast<unsigned>(plan.grid_x(num_rows)));
          const ValueTile<int64_t> tile = tile_of_block<int64_t>(p, plan, block);
          ASSERT_EQ(tile.head, head) << "Tk " << num_rows << " KH " << kv_heads;
          ASSERT_TRUE(token >= tile.first_token && token < tile.first_token + tile.num_tokens)
              << "Tk " << num_rows << " KH " << kv_heads << " token " << token;
        }
      }
      blockIdx.x = static_cast<unsigned>(plan.grid_x(num_rows) - 1);
      const ValueTile<int64_t> last = tile_of_block<int64_t>(p, plan, plan.tile_blocks - 1);
      ASSERT_LE(last.first_token + last.num_tokens, num_rows);
    }
  }
}

}  // namespace
}  // namespace kvrope
