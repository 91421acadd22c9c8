#include "engine_step/block_pool.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace kvrope::engine {

BlockPool::BlockPool(int64_t num_blocks)
    : references_(static_cast<size_t>(num_blocks), 0), free_(static_cast<size_t>(num_blocks)) {
  std::iota(free_.begin(), free_.end(), 0);
}

int64_t BlockPool::allocate() {
  if (free_.empty()) throw std::logic_error("no block is free");
  const int64_t block = free_.front();
  retain(block);
  return block;
}

void BlockPool::retain(int64_t block) {
  if (references_.at(static_cast<size_t>(block))++ == 0) {
    free_.erase(std::find(free_.begin(), free_.end(), block));
  }
}

void BlockPool::release(int64_t block) {
  int64_t& references = references_.at(static_cast<size_t>(block));
  if (references == 0) throw std::logic_error("block " + std::to_string(block) + " is free already");
  if (--references == 0) free_.push_back(block);
}

}  // namespace kvrope::engine
