#include "engine_step/scheduler.h"

#include <algorithm>
#include <stdexcept>

namespace kvrope::engine {

Scheduler::Scheduler(const SchedulerConfig& config)
    : config_(config),
      blocks_(config.num_blocks),
      window_(config.num_blocks, config.num_window_blocks, config.block_size),
      prefixes_(config.block_size) {
  // The longest stretch in the window caches: a chunk and the window before it, both cut into blocks.
  const int64_t stretch = std::min(config.max_length, config.window + config.token_budget);
  if (config.num_blocks < config.max_blocks() || config.num_window_blocks < stretch / config.block_size + 2) {
    throw std::invalid_argument("the caches have too few blocks for the longest request");
  }
}

std::vector<Chunk> Scheduler::schedule() {
  std::vector<Chunk> chunks;
  int64_t budget = config_.token_budget;
  const int64_t preemptions = statistics_.preemptions;
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    const RequestPtr request = running_[i];
    const int64_t count = std::min(request->num_known - request->num_computed, budget);
    // Those behind in the list are not in this step yet; the last to go is the request itself.
    while (i < running_.size() && !make_room(*request, count)) preempt_last();
    if (i == running_.size()) break;
    chunks.push_back({request, request->num_computed, count});
    budget -= count;
  }
  if (statistics_.preemptions == preemptions) admit(chunks, budget);
  return chunks;
}

void Scheduler::admit(std::vector<Chunk>& chunks, int64_t budget) {
  while (budget > 0 && !waiting_.empty() && static_cast<int64_t>(running_.size()) < config_.max_running) {
    const RequestPtr request = waiting_.front();
    share_prefix(*request);
    const int64_t count = std::min(request->num_known - request->num_computed, budget);
    if (!make_room(*request, count)) {
      give_back(*request);
      return;
    }
    statistics_.shared_tokens += request->num_computed;
    waiting_.pop_front();
    running_.push_back(request);
    chunks.push_back({request, request->num_computed, count});
    budget -= count;
  }
}

// Holds the full blocks that others have computed. They are only read: the request's own tokens begin in a
// block of its own, so a block that is shared in part is computed anew.
void Scheduler::share_prefix(Request& request) {
  const int64_t most = (request.num_known - 1) / config_.block_size;  // one token is left to compute
  std::vector<int64_t> found = prefixes_.find(request.tokens, most);
  // The window caches forget sooner: what the next token sees there must be there still.
  const auto in_window = [&](int64_t count) {
    const int64_t first = first_block_in_window(count * config_.block_size);
    return std::all_of(found.begin() + first, found.begin() + count,
                       [&](int64_t block) { return window_.has(block); });
  };
  auto count = static_cast<int64_t>(found.size());
  while (!in_window(count)) --count;
  found.resize(static_cast<size_t>(count));

  request.num_computed = count * config_.block_size;
  request.num_indexed = count;
  request.first_window_block = first_block_in_window(request.num_computed);
  request.blocks = found;
  for (int64_t i = 0; i < count; ++i) {
    blocks_.retain(found[static_cast<size_t>(i)]);
    if (i >= request.first_window_block) window_.retain(found[static_cast<size_t>(i)]);
  }
}

bool Scheduler::make_room(Request& request, int64_t count) {
  const int64_t tokens = request.num_computed + count;
  const int64_t needed =
      (tokens + config_.block_size - 1) / config_.block_size - static_cast<int64_t>(request.blocks.size());
  if (needed > blocks_.num_free() || needed > window_.pool().num_free()) return false;
  for (int64_t i = 0; i < needed; ++i) {
    const int64_t block = blocks_.allocate();
    prefixes_.forget(block);
    window_.forget(block);
    statistics_.window_evictions += window_.allocate(block);
    request.blocks.push_back(block);
    ++statistics_.blocks_taken;
  }
  return true;
}

void Scheduler::commit(const std::vector<Chunk>& chunks) {
  for (const Chunk& chunk : chunks) {
    Request& request = *chunk.request;
    request.num_computed += chunk.count;
    index_full_blocks(request);
    slide_window(request);
    if (request.num_computed < request.num_known) continue;
    if (request.num_known < request.length()) {
      ++request.num_known;
    } else {
      remove(chunk.request);
      ++statistics_.finished;
    }
  }
}

void Scheduler::index_full_blocks(Request& request) {
  for (; (request.num_indexed + 1) * config_.block_size <= request.num_computed; ++request.num_indexed) {
    prefixes_.insert(request.tokens, request.num_indexed,
                     request.blocks[static_cast<size_t>(request.num_indexed)]);
  }
}

int64_t Scheduler::first_block_in_window(int64_t position) const {
  return std::max<int64_t>(0, position - config_.window + 1) / config_.block_size;
}

void Scheduler::slide_window(Request& request) {
  const int64_t first = first_block_in_window(request.num_computed);
  for (; request.first_window_block < first; ++request.first_window_block) {
    window_.release(request.blocks[static_cast<size_t>(request.first_window_block)]);
  }
}

void Scheduler::preempt_last() {
  const RequestPtr victim = running_.back();
  remove(victim);
  waiting_.push_front(victim);
  ++statistics_.preemptions;
}

void Scheduler::drop(const RequestPtr& request) {
  remove(request);
  ++statistics_.dropped;
}

void Scheduler::remove(const RequestPtr& request) {
  give_back(*request);
  running_.erase(std::find(running_.begin(), running_.end(), request));
}

// The ends of prefixes are reused before their beginnings, which more requests share.
void Scheduler::give_back(Request& request) {
  for (auto i = static_cast<int64_t>(request.blocks.size()) - 1; i >= 0; --i) {
    const int64_t block = request.blocks[static_cast<size_t>(i)];
    if (i >= request.first_window_block) window_.release(block);
    blocks_.release(block);
  }
  request.blocks.clear();
  request.num_computed = request.num_indexed = request.first_window_block = 0;
}

}  // namespace kvrope::engine
