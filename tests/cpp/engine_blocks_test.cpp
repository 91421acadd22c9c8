// The engine step's scheduler without a model: blocks, prefixes, windows, evictions, and the audit that
// watches them.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "engine_step/audit.h"
#include "engine_step/workload.h"

namespace kvrope::engine {
namespace {

using Texts = std::vector<std::string>;
using Numbers = std::vector<int64_t>;

bool has(const Texts& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

template <typename Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

TEST(EngineBlockPool, TheBlockThatIsFreeForLongestGoesFirst) {
  BlockPool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  pool.release(1);
  pool.release(0);
  EXPECT_EQ(pool.free_blocks(), (std::deque<int64_t>{2, 1, 0}));
  pool.retain(1);  // its content is still there
  EXPECT_EQ(pool.free_blocks(), (std::deque<int64_t>{2, 0}));
  EXPECT_EQ(pool.references(1), 1);
}

TEST(EngineBlockPool, ErrorsSayWhat) {
  BlockPool pool(1);
  EXPECT_EQ(message_of([&] { pool.release(0); }), "block 0 is free already");
  pool.allocate();
  EXPECT_EQ(message_of([&] { pool.allocate(); }), "no block is free");
  EXPECT_THROW(pool.retain(1), std::out_of_range);
}

TEST(EnginePrefixIndex, FindsTheLongestPrefixThatIsKnown) {
  PrefixIndex index(2);
  index.insert({1, 2, 3, 4, 5}, 0, 7);
  index.insert({1, 2, 3, 4, 5}, 1, 3);
  index.insert({1, 2, 3, 4}, 1, 9);  // the same content once more
  EXPECT_EQ(index.find({1, 2, 3, 4, 6, 6}, 3), (Numbers{7, 3}));
  EXPECT_EQ(index.find({1, 2, 3, 4}, 1), (Numbers{7}));
  EXPECT_TRUE(index.find({9, 2, 3, 4}, 2).empty());
  index.insert({9, 9, 8, 8}, 0, 5);
  EXPECT_EQ(index.find({9, 9, 3, 4}, 2), (Numbers{5}));  // the block of 3, 4 has other tokens before it
  index.forget(7);
  index.forget(9);
  EXPECT_TRUE(index.find({1, 2, 3, 4}, 2).empty());
}

TEST(EngineWindowBlocks, ABlockIsEvictedWhenItsOwnIsTaken) {
  WindowBlocks window(4, 2, 2);
  EXPECT_FALSE(window.allocate(3));
  EXPECT_FALSE(window.allocate(1));
  EXPECT_EQ(window.slot_table(), (Numbers{-1, -1, 2, 3, -1, -1, 0, 1}));
  window.release(3);
  EXPECT_TRUE(window.has(3));
  EXPECT_TRUE(window.allocate(0));
  EXPECT_EQ(window.slot_table(), (Numbers{0, 1, 2, 3, -1, -1, -1, -1}));
  EXPECT_EQ(message_of([&] { window.retain(3); }), "block 3 has no window block");
}

RequestPtr request(std::vector<int64_t> tokens, int64_t num_prompt) {
  static int64_t id = 0;
  auto made = std::make_shared<Request>();
  made->id = id++;
  made->tokens = std::move(tokens);
  made->num_prompt = made->num_known = num_prompt;
  return made;
}

std::vector<int64_t> counts(const std::vector<Chunk>& chunks) {
  std::vector<int64_t> counts;
  for (const Chunk& chunk : chunks) counts.push_back(chunk.count);
  return counts;
}

class EngineScheduler : public testing::Test {
 protected:
  std::vector<Chunk> step() {
    std::vector<Chunk> chunks = scheduler.schedule();
    EXPECT_EQ(audit_blocks(scheduler), Texts{});
    EXPECT_EQ(audit_writes(make_rows(chunks, scheduler), scheduler), Texts{});
    if (chunks.empty()) throw std::logic_error("no request can run");  // loops would not end
    scheduler.commit(chunks);
    return chunks;
  }

  Scheduler scheduler{{.block_size = 4,
                       .num_blocks = 6,
                       .num_window_blocks = 6,
                       .window = 6,
                       .max_length = 16,
                       .token_budget = 8,
                       .max_running = 3}};
};

TEST_F(EngineScheduler, DecodeAndChunksOfPromptsShareTheBudget) {
  scheduler.submit(request({1, 2, 3, 4, 5}, 3));
  EXPECT_EQ(counts(step()), (Numbers{3}));
  scheduler.submit(request(std::vector<int64_t>(11, 8), 11));
  EXPECT_EQ(counts(step()), (Numbers{1, 7}));
  EXPECT_EQ(counts(step()), (Numbers{1, 4}));
  EXPECT_TRUE(scheduler.is_idle());
  EXPECT_EQ(scheduler.statistics().finished, 2);
}

TEST_F(EngineScheduler, FullBlocksAreSharedAndTheLastOneIsComputedAnew) {
  const RequestPtr first = request({1, 2, 3, 4, 5, 6, 7, 8}, 7);
  const RequestPtr second = request({1, 2, 3, 4, 5, 6, 7, 8}, 7);
  scheduler.submit(first);
  step();
  scheduler.submit(second);
  const std::vector<Chunk> chunks = step();
  EXPECT_EQ(chunks[1].first, 4);
  EXPECT_EQ(counts(chunks), (Numbers{1, 3}));
  EXPECT_EQ(scheduler.statistics().shared_tokens, 4);
  EXPECT_EQ(scheduler.blocks().references(second->blocks.front()), 1);  // the first has finished
}

TEST_F(EngineScheduler, APrefixThatHasLeftTheWindowCacheIsComputedAnew) {
  std::vector<int64_t> tokens(16);
  for (int64_t i = 0; i < 16; ++i) tokens[static_cast<size_t>(i)] = i;
  scheduler.submit(request(tokens, 16));
  while (!scheduler.is_idle()) step();
  scheduler.submit(request(std::vector<int64_t>(16, 99), 16));  // takes the window blocks
  while (!scheduler.is_idle()) step();
  scheduler.submit(request(tokens, 16));
  EXPECT_EQ(counts(step()), (Numbers{8}));
  EXPECT_EQ(scheduler.statistics().shared_tokens, 0);
}

TEST_F(EngineScheduler, TheLastRequestGivesItsBlocksBackAndIsComputedAgain) {
  const RequestPtr early = request(std::vector<int64_t>(16, 1), 8);
  const RequestPtr late = request(std::vector<int64_t>(16, 2), 15);
  scheduler.submit(early);
  step();
  scheduler.submit(late);
  while (scheduler.statistics().preemptions == 0) step();
  EXPECT_EQ(scheduler.running(), std::vector<RequestPtr>{early});
  EXPECT_EQ(late->num_computed, 0);
  EXPECT_TRUE(late->blocks.empty());
  while (!scheduler.is_idle()) step();
  EXPECT_EQ(scheduler.statistics().finished, 2);
}

TEST_F(EngineScheduler, CachesTooSmallForOneRequestAreRefused) {
  SchedulerConfig config;
  config.num_blocks = config.max_blocks() - 1;
  EXPECT_EQ(message_of([&] { Scheduler{config}; }), "the caches have too few blocks for the longest request");
}

// No block may be lost, shared by accident or written by two, whatever the sizes and the order of events.
TEST(EngineSchedule, ThousandsOfRandomStepsKeepEveryBlockInItsPlace) {
  int64_t steps = 0, preemptions = 0, shared = 0;
  for (int64_t seed = 0; seed < 40; ++seed) {
    regress::Random random(seed, "sizes");
    SchedulerConfig config;
    config.block_size = 1 + random.below(9);
    config.window = 1 + random.below(40);
    config.max_length = 8 + random.below(90);
    config.token_budget = 1 + random.below(40);
    config.num_blocks = config.max_blocks() + random.below(50);
    config.num_window_blocks =
        (config.window + config.token_budget) / config.block_size + 2 + random.below(20);
    Scheduler scheduler(config);
    Workload workload(seed, 5, config.max_length);
    for (int64_t step = 0; step < 250 || !scheduler.is_idle(); ++step, ++steps) {
      if (step < 250) {
        for (const RequestPtr& arrived : workload.arrivals()) scheduler.submit(arrived);
      }
      std::vector<Chunk> chunks = scheduler.schedule();
      ASSERT_TRUE(scheduler.is_idle() || !chunks.empty()) << "seed " << seed << ", step " << step;
      for (const Chunk& chunk : chunks) ASSERT_GT(chunk.count, 0) << "seed " << seed << ", step " << step;
      ASSERT_EQ(audit_blocks(scheduler), Texts{}) << "seed " << seed << ", step " << step;
      ASSERT_EQ(audit_writes(make_rows(chunks, scheduler), scheduler), Texts{})
          << "seed " << seed << ", step " << step;
      if (!chunks.empty() && random.below(30) == 0) {
        scheduler.drop(chunks.back().request);
        chunks.pop_back();
      }
      scheduler.commit(chunks);
    }
    ASSERT_EQ(audit_blocks(scheduler), Texts{}) << "seed " << seed;
    ASSERT_EQ(scheduler.blocks().num_free(), config.num_blocks);
    ASSERT_EQ(scheduler.window().pool().num_free(), config.num_window_blocks);
    preemptions += scheduler.statistics().preemptions;
    shared += scheduler.statistics().shared_tokens;
  }
  EXPECT_GT(steps, 10000);
  EXPECT_GT(preemptions, 1000);
  EXPECT_GT(shared, 1000);
}

TEST_F(EngineScheduler, TheAuditSeesALostBlock) {
  const std::string block = std::to_string(scheduler.blocks().allocate());
  const auto complaints = audit_blocks(scheduler);
  EXPECT_TRUE(has(complaints, "full block " + block + ": 1 references, held by 0 requests"));
  EXPECT_TRUE(has(complaints, "full block " + block + ": 0 times in the free list, held by 0 requests"));
}

TEST_F(EngineScheduler, TheAuditSeesABlockThatIsFreeAndInUse) {
  const RequestPtr running = request({1, 2, 3, 4, 5}, 3);
  scheduler.submit(running);
  step();
  const std::string block = std::to_string(running->blocks[0]);
  scheduler.blocks().release(running->blocks[0]);
  EXPECT_EQ(audit_blocks(scheduler),
            (Texts{"full block " + block + ": 0 references, held by 1 requests",
                   "full block " + block + ": 1 times in the free list, held by 1 requests"}));
}

TEST_F(EngineScheduler, TheAuditSeesABlockSharedByAccident) {
  const RequestPtr first = request({1, 2, 3, 4, 5, 6}, 3), second = request({8, 8, 8, 8, 8, 8}, 3);
  scheduler.submit(first);
  scheduler.submit(second);
  step();
  std::swap(first->blocks[0], second->blocks[0]);
  EXPECT_EQ(audit_blocks(scheduler), Texts{});  // a mix-up is for the comparison of outputs to see
  first->blocks[0] = second->blocks[0];
  EXPECT_TRUE(has(audit_blocks(scheduler),
                  "full block " + std::to_string(second->blocks[0]) + ": 1 references, held by 2 requests"));
}

TEST_F(EngineScheduler, TheAuditSeesWritesThatAreNotTheRowsOwn) {
  const RequestPtr running = request({1, 2, 3, 4, 5}, 3);
  scheduler.submit(running);
  StepRows rows = make_rows(scheduler.schedule(), scheduler);
  rows.slots[1] = rows.slots[0];
  rows.slots[2] = 23;  // of a free block
  EXPECT_EQ(audit_writes(rows, scheduler),
            (Texts{"row 1 writes slot " + std::to_string(rows.slots[0]) + ", as an earlier row does",
                   "row 2 writes slot 23 of a block with 0 references"}));
}

TEST(EngineRows, PaddedUpToTheSizesOfGraphs) {
  std::vector<int64_t> sizes;
  for (int64_t rows : {0, 1, 2, 3, 5, 8, 9, 16, 17}) sizes.push_back(padded_size(rows));
  EXPECT_EQ(sizes, (Numbers{1, 1, 2, 4, 8, 8, 16, 16, 24}));
}

TEST_F(EngineScheduler, RowsOfAStep) {
  scheduler.submit(request({1, 2, 3, 4, 5, 6}, 5));
  const StepRows rows = make_rows(scheduler.schedule(), scheduler);
  EXPECT_EQ(rows.tokens, (Numbers{1, 2, 3, 4, 5, 0, 0, 0}));
  EXPECT_EQ(rows.positions, (Numbers{0, 1, 2, 3, 4, 0, 0, 0}));
  EXPECT_EQ(rows.slots, (Numbers{0, 1, 2, 3, 4, -1, -1, -1}));
  EXPECT_EQ(rows.num_padding, 3);
  EXPECT_FALSE(rows.is_decode);
  EXPECT_EQ(chunk_of_row(rows, 4), 0u);
  EXPECT_EQ(chunk_of_row(rows, 5), 1u);
}

}  // namespace
}  // namespace kvrope::engine
