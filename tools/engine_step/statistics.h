// What an engine has done.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvrope::engine {

struct Statistics {
  int64_t steps = 0, decode_steps = 0, mixed_steps = 0;  // mixed: prefill and decode in one batch
  int64_t prefill_tokens = 0, decode_tokens = 0, padding_rows = 0;
  int64_t shared_tokens = 0;  // found in blocks of other requests instead of being computed
  int64_t blocks_taken = 0, window_evictions = 0;
  int64_t preemptions = 0, finished = 0, dropped = 0;
  int64_t graphs = 0, graph_replays = 0;
  double largest_error = 0;

  int64_t num_mismatches = 0;            // tokens of one layer whose attention is not as expected
  int64_t num_complaints = 0;            // these, and blocks that are not where they should be
  std::vector<std::string> complaints;   // the first of them
  std::vector<std::string> fault_texts;  // what the operation said of slots and positions out of range
};

}  // namespace kvrope::engine
