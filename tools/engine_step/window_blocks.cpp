#include "engine_step/window_blocks.h"

#include <stdexcept>
#include <string>

namespace kvrope::engine {

WindowBlocks::WindowBlocks(int64_t num_full_blocks, int64_t num_window_blocks, int64_t block_size)
    : block_size_(block_size),
      pool_(num_window_blocks),
      window_of_(static_cast<size_t>(num_full_blocks), -1),
      full_of_(static_cast<size_t>(num_window_blocks), -1),
      slot_table_(static_cast<size_t>(num_full_blocks * block_size), -1) {}

int64_t WindowBlocks::window_block(int64_t full_block) const {
  const int64_t block = window_of_.at(static_cast<size_t>(full_block));
  if (block < 0) throw std::logic_error("block " + std::to_string(full_block) + " has no window block");
  return block;
}

bool WindowBlocks::allocate(int64_t full_block) {
  const int64_t window_block = pool_.allocate();
  const int64_t evicted = full_of_[static_cast<size_t>(window_block)];
  if (evicted >= 0) map(evicted, -1);
  map(full_block, window_block);
  full_of_[static_cast<size_t>(window_block)] = full_block;
  return evicted >= 0;
}

void WindowBlocks::forget(int64_t full_block) {
  if (!has(full_block)) return;
  full_of_[static_cast<size_t>(window_block(full_block))] = -1;
  map(full_block, -1);
}

void WindowBlocks::map(int64_t full_block, int64_t window_block) {
  window_of_[static_cast<size_t>(full_block)] = window_block;
  for (int64_t offset = 0; offset < block_size_; ++offset) {
    slot_table_[static_cast<size_t>(full_block * block_size_ + offset)] =
        window_block < 0 ? -1 : window_block * block_size_ + offset;
  }
}

}  // namespace kvrope::engine
