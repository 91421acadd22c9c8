// Every slice of every row of every token has one thread. The device function is compiled for the host, with
// the built-in variables of CUDA as plain ones (host_cuda.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "host_cuda.h"
#include "thread_work.cuh"

namespace kvrope {
namespace {

// Sizes are all that a plan looks at here; with `by_token`, head dimensions of the value cache lie apart.
RopeCacheParams params_of(int64_t num_rows, int q_heads, int kv_heads, int head_size, bool by_token) {
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
  p.key_cache.layout.dim_outer_stride = 1;
  p.value_cache.layout.dim_outer_stride = by_token ? 16 : 1;
  return p;
}

void enter_grid(const RopeCacheParams& p) {
  gridDim.x = static_cast<unsigned>(p.num_kv_rows);
}

// The kernel takes either form of the parameters; both say the same.
ThreadWork<int64_t> work_of(const RopeCacheParams& p, const LaunchPlan& plan, Index3 block, Index3 thread) {
  blockIdx = block;
  threadIdx = thread;
  const ThreadWork<int64_t> work = work_of_thread(p, plan);
  CompactParams compact = {};
  compact.num_kv_rows = static_cast<uint32_t>(p.num_kv_rows);
  compact.num_q_heads = p.num_q_heads;
  const ThreadWork<uint32_t> compact_work = work_of_thread(compact, plan);
  EXPECT_EQ(int64_t{compact_work.token}, work.token);
  EXPECT_EQ(compact_work.row, work.row);
  EXPECT_EQ(compact_work.slice, work.slice);
  return work;
}

void expect_each_slice_once(const RopeCacheParams& p) {
  const LaunchPlan plan = plan_launch(p);
  enter_grid(p);
  std::vector<int> num_threads(p.num_kv_rows * plan.num_rows * plan.threads_per_row, 0);
  const auto blocks_y = static_cast<unsigned>(plan.blocks_by_row + plan.blocks_by_token);
  for (Index3 block = {0, 0}; block.y < blocks_y; ++block.y) {
    for (block.x = 0; block.x < p.num_kv_rows; ++block.x) {
      for (Index3 thread = {0, 0}; thread.y < static_cast<unsigned>(plan.rows_per_block); ++thread.y) {
        for (thread.x = 0; thread.x < static_cast<unsigned>(plan.threads_per_row); ++thread.x) {
          const ThreadWork<int64_t> work = work_of(p, plan, block, thread);
          ASSERT_GE(work.row, 0);
          if (work.row >= plan.num_rows) continue;
          ASSERT_TRUE(work.token >= 0 && work.token < p.num_kv_rows) << work.token;
          ASSERT_TRUE(work.slice >= 0 && work.slice < plan.threads_per_row) << work.slice;
          ++num_threads[(work.token * plan.num_rows + work.row) * plan.threads_per_row + work.slice];
        }
      }
    }
  }
  ASSERT_EQ(*std::min_element(num_threads.begin(), num_threads.end()), 1) << "a slice is left out";
  ASSERT_EQ(*std::max_element(num_threads.begin(), num_threads.end()), 1) << "a slice is served twice";
}

TEST(ThreadWork, EachSliceHasOneThread) {
  bool some_by_token = false;
  for (const bool by_token : {false, true}) {
    for (const int64_t num_rows : {1, 2, 17, 128, 133, 300}) {
      for (const auto& [q_heads, kv_heads] :
           {std::pair(1, 1), std::pair(3, 3), std::pair(32, 8), std::pair(71, 1)}) {
        for (const int head_size : {2, 64, 66, 128, 250, 512}) {
          const RopeCacheParams p = params_of(num_rows, q_heads, kv_heads, head_size, by_token);
          some_by_token |= plan_launch(p).blocks_by_token > 0;
          expect_each_slice_once(p);
          if (HasFatalFailure()) {
            FAIL() << "Tk " << num_rows << " QH " << q_heads << " KH " << kv_heads << " D " << head_size
                   << (by_token ? " by token" : " by row");
          }
        }
      }
    }
  }
  EXPECT_TRUE(some_by_token);
}

// In grids too large to walk, the thread that should serve a slice is looked up and asked.
void expect_thread_of_slice(const RopeCacheParams& p, const LaunchPlan& plan, int64_t token, int row,
                            int slice) {
  Index3 block, thread;
  if (plan.blocks_by_token == 0 || row < p.num_q_heads) {
    block = {static_cast<unsigned>(token), static_cast<unsigned>(row / plan.rows_per_block)};
    thread = {static_cast<unsigned>(slice), static_cast<unsigned>(row % plan.rows_per_block)};
    ASSERT_LT(block.y, static_cast<unsigned>(plan.blocks_by_row));
  } else {
    const int64_t tile_tokens = int64_t{1} << plan.tile_tokens_log2;
    const int64_t num_tiles = (p.num_kv_rows + tile_tokens - 1) / tile_tokens;
    const int64_t linear = token / tile_tokens + num_tiles * (row - p.num_q_heads);
    const int64_t in_block = token % tile_tokens + tile_tokens * slice;
    block = {static_cast<unsigned>(linear % p.num_kv_rows),
             static_cast<unsigned>(plan.blocks_by_row + linear / p.num_kv_rows)};
    thread = {static_cast<unsigned>(in_block % plan.threads_per_row),
              static_cast<unsigned>(in_block / plan.threads_per_row)};
    ASSERT_LT(block.y, static_cast<unsigned>(plan.blocks_by_row + plan.blocks_by_token));
    ASSERT_LT(thread.y, static_cast<unsigned>(plan.rows_per_block));
  }
  const ThreadWork<int64_t> work = work_of(p, plan, block, thread);
  ASSERT_EQ(work.token, token);
  ASSERT_EQ(work.row, row);
  ASSERT_EQ(work.slice, slice);
}

TEST(ThreadWork, GridsOfBillionsOfTokens) {
  for (const bool by_token : {false, true}) {
    for (const int64_t num_rows : {int64_t{1} << 20, (int64_t{1} << 28) + 5, int64_t{INT32_MAX}}) {
      for (const int kv_heads : {1, 2, 8, 32, 128}) {
        for (const int head_size : {2, 128, 512}) {
          const RopeCacheParams p = params_of(num_rows, kv_heads, kv_heads, head_size, by_token);
          const LaunchPlan plan = plan_launch(p);
          enter_grid(p);
          for (const int64_t token : {int64_t{0}, int64_t{17}, num_rows / 3, num_rows - 2, num_rows - 1}) {
            for (const int row : {0, kv_heads - 1, kv_heads, 2 * kv_heads, plan.num_rows - 1}) {
              expect_thread_of_slice(p, plan, token, row, 0);
              expect_thread_of_slice(p, plan, token, row, plan.threads_per_row - 1);
              if (HasFatalFailure()) {
                FAIL() << "Tk " << num_rows << " KH " << kv_heads << " D " << head_size << " token " << token
                       << " row " << row;
              }
            }
          }
        }
      }
    }
  }
}

// Blocks past the last tile have nothing to do, in the largest grids too.
TEST(ThreadWork, SurplusBlocksAreIdle) {
  for (const int64_t num_rows :
       {int64_t{128}, int64_t{1001}, (int64_t{1} << 28) + 5, (int64_t{1} << 30) - 1}) {
    for (const auto& [kv_heads, head_size] :
         {std::pair(1, 2), std::pair(1, 512), std::pair(3, 512), std::pair(32, 2)}) {
      const RopeCacheParams p = params_of(num_rows, kv_heads, kv_heads, head_size, true);
      const LaunchPlan plan = plan_launch(p);
      if (plan.blocks_by_token == 0) continue;
      enter_grid(p);
      const int64_t tile_tokens = int64_t{1} << plan.tile_tokens_log2;
      const int64_t num_used = (p.num_kv_rows + tile_tokens - 1) / tile_tokens * (2 * kv_heads);
      const int64_t num_blocks = num_rows * plan.blocks_by_token;
      for (const int64_t linear : {num_used, (num_used + num_blocks) / 2, num_blocks - 1}) {
        if (linear < num_used || linear >= num_blocks) continue;
        const Index3 block = {static_cast<unsigned>(linear % num_rows),
                              static_cast<unsigned>(plan.blocks_by_row + linear / num_rows)};
        ASSERT_GE(work_of(p, plan, block, {0, 0}).row, plan.num_rows)
            << "Tk " << num_rows << " KH " << kv_heads;
      }
    }
  }
}

}  // namespace
}  // namespace kvrope
