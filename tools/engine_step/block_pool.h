// Blocks of a paged cache: who may take one, and how many hold it. A block whose last holder lets go keeps
// its content until it is taken for something else, and can be held again until then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace kvrope::engine {

class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  // The block that has been free for longest, with one reference. Throws std::logic_error when none is free.
  int64_t allocate();
  // One more reference. A free block leaves the free list.
  void retain(int64_t block);
  // One reference less; without any the block is free. Throws std::logic_error when it was free already.
  void release(int64_t block);

  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t references(int64_t block) const { return references_.at(static_cast<size_t>(block)); }
  const std::deque<int64_t>& free_blocks() const { return free_; }

 private:
  std::vector<int64_t> references_;
  std::deque<int64_t> free_;  // the next one to be taken first
};

}  // namespace kvrope::engine
