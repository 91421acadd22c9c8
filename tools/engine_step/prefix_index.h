// Which block holds which full block of which prefix, so that requests that begin alike share it. Keys are
// the tokens themselves: no two prefixes are ever taken for each other.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace kvrope::engine {

class PrefixIndex {
 public:
  explicit PrefixIndex(int64_t block_size) : block_size_(block_size) {}

  // The blocks of the longest known prefix of `tokens`, at most `most_blocks`.
  std::vector<int64_t> find(const std::vector<int64_t>& tokens, int64_t most_blocks) const;
  // `block` holds the full block `number` of `tokens`. Of two blocks with one content the first is kept.
  void insert(const std::vector<int64_t>& tokens, int64_t number, int64_t block);
  // `block` is about to hold something else.
  void forget(int64_t block);

 private:
  using Blocks = std::map<std::vector<int64_t>, int64_t>;
  std::vector<int64_t> key(const std::vector<int64_t>& tokens, int64_t number) const;

  int64_t block_size_;
  Blocks block_of_;
  std::unordered_map<int64_t, Blocks::iterator> key_of_;
};

}  // namespace kvrope::engine
