// Continuous batching: what the next step computes, and in which blocks. Requests that run come first, a
// token each or a chunk of their prompt, then those that wait; when blocks run out, the request that came
// last gives its own back and is recomputed later.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "engine_step/block_pool.h"
#include "engine_step/prefix_index.h"
#include "engine_step/request.h"
#include "engine_step/statistics.h"
#include "engine_step/window_blocks.h"

namespace kvrope::engine {

struct SchedulerConfig {
  int64_t block_size = 8;
  int64_t num_blocks = 44, num_window_blocks = 30;  // of the full and of the window caches
  int64_t window = 20;                              // a token sees itself and the window - 1 before it
  int64_t max_length = 96;                          // of a request; rows of the rotary table
  int64_t token_budget = 32;                        // of a step
  int64_t max_running = 12;

  int64_t max_blocks() const { return (max_length + block_size - 1) / block_size; }
  int64_t num_slots() const { return num_blocks * block_size; }
};

class Scheduler {
 public:
  // Throws std::invalid_argument where the caches are too small for one request alone.
  explicit Scheduler(const SchedulerConfig& config);

  void submit(RequestPtr request) { waiting_.push_back(std::move(request)); }
  // Every chunk's tokens have slots when this returns.
  std::vector<Chunk> schedule();
  // The step has computed these chunks.
  void commit(const std::vector<Chunk>& chunks);
  // The request is served no further.
  void drop(const RequestPtr& request);

  bool is_idle() const { return running_.empty() && waiting_.empty(); }
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }
  const std::vector<RequestPtr>& running() const { return running_; }
  const SchedulerConfig& config() const { return config_; }
  BlockPool& blocks() { return blocks_; }
  const BlockPool& blocks() const { return blocks_; }
  const WindowBlocks& window() const { return window_; }
  Statistics& statistics() { return statistics_; }

 private:
  bool make_room(Request& request, int64_t count);
  void share_prefix(Request& request);
  void admit(std::vector<Chunk>& chunks, int64_t budget);
  void preempt_last();
  void give_back(Request& request);
  void remove(const RequestPtr& request);
  void index_full_blocks(Request& request);
  void slide_window(Request& request);
  // The first block of which a token at this position sees something in the window layers.
  int64_t first_block_in_window(int64_t position) const;

  SchedulerConfig config_;
  BlockPool blocks_;
  WindowBlocks window_;
  PrefixIndex prefixes_;
  std::vector<RequestPtr> running_;
  std::deque<RequestPtr> waiting_;
  Statistics statistics_;
};

}  // namespace kvrope::engine
