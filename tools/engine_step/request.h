// One sequence on its way through the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace kvrope::engine {

struct Request {
  int64_t id = 0;
  // The prompt and what will follow it. There is no sampling here: the token after the last known one becomes
  // known when the step has computed that one.
  std::vector<int64_t> tokens;
  int64_t num_prompt = 0;
  int64_t num_known = 0;     // those that a step may compute
  int64_t num_computed = 0;  // those whose keys and values are cached

  std::vector<int64_t> blocks;     // the block table: block of tokens i * block_size ..
  int64_t first_window_block = 0;  // blocks before this one have left the window
  int64_t num_indexed = 0;         // full blocks that other requests can find

  // What attention must give, computed without a cache: [layer][position][head][dim].
  std::vector<float> expected;

  int64_t length() const { return static_cast<int64_t>(tokens.size()); }
};

using RequestPtr = std::shared_ptr<Request>;

// The tokens of one request that a step computes.
struct Chunk {
  RequestPtr request;
  int64_t first = 0, count = 0;  // positions
};

}  // namespace kvrope::engine
