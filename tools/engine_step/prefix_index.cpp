#include "engine_step/prefix_index.h"

namespace kvrope::engine {

// A block's content depends on all tokens before it.
std::vector<int64_t> PrefixIndex::key(const std::vector<int64_t>& tokens, int64_t number) const {
  return {tokens.begin(), tokens.begin() + (number + 1) * block_size_};
}

std::vector<int64_t> PrefixIndex::find(const std::vector<int64_t>& tokens, int64_t most_blocks) const {
  std::vector<int64_t> blocks;
  for (int64_t number = 0; number < most_blocks; ++number) {
    const auto found = block_of_.find(key(tokens, number));
    if (found == block_of_.end()) break;
    blocks.push_back(found->second);
  }
  return blocks;
}

void PrefixIndex::insert(const std::vector<int64_t>& tokens, int64_t number, int64_t block) {
  const auto [entry, is_new] = block_of_.try_emplace(key(tokens, number), block);
  if (is_new) key_of_[block] = entry;
}

void PrefixIndex::forget(int64_t block) {
  const auto found = key_of_.find(block);
  if (found == key_of_.end()) return;
  block_of_.erase(found->second);
  key_of_.erase(found);
}

}  // namespace kvrope::engine
