// The smaller cache of the sliding-window layers. A block of the full cache has a block here while its tokens
// are within the window of a request that holds it, and afterwards until that block is taken for another. The
// slot table is what the operation takes as swa_slot_mapping: slot of the full cache -> slot here, or -1.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_step/block_pool.h"

namespace kvrope::engine {

class WindowBlocks {
 public:
  WindowBlocks(int64_t num_full_blocks, int64_t num_window_blocks, int64_t block_size);

  bool has(int64_t full_block) const { return window_of_.at(static_cast<size_t>(full_block)) >= 0; }
  // Gives whether another full block loses its own.
  bool allocate(int64_t full_block);
  void retain(int64_t full_block) { pool_.retain(window_block(full_block)); }
  void release(int64_t full_block) { pool_.release(window_block(full_block)); }
  // The full block is about to hold something else.
  void forget(int64_t full_block);

  // Throws std::logic_error when the full block has none.
  int64_t window_block(int64_t full_block) const;
  const BlockPool& pool() const { return pool_; }
  const std::vector<int64_t>& slot_table() const { return slot_table_; }

 private:
  void map(int64_t full_block, int64_t window_block);

  int64_t block_size_;
  BlockPool pool_;
  std::vector<int64_t> window_of_, full_of_;  // -1: none
  std::vector<int64_t> slot_table_;
};

}  // namespace kvrope::engine
