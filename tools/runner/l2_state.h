// What the L2 cache (on the CPU: the last-level cache) holds when a timed call begins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

enum class L2State {
  warm,      // one set of buffers: whatever fits is there
  flushed,   // nothing: it is flushed before the calls, and each call has buffers of its own
  rotating,  // what a long run leaves: calls go round sets of buffers of more than 600 MB
};
const char* name_of(L2State state);
const std::vector<std::pair<std::string, L2State>>& l2_states();

// Those among the case's tags; warm where none is.
std::vector<L2State> l2_states_of(const CaseSpec& spec);

// Whether all calls read one table of cosines and sines, as all layers of a model do.
inline bool shares_table(L2State state) {
  return state != L2State::flushed;
}

// Calls are timed in groups; call i uses set i % sets.
struct CallGroup {
  int64_t sets, calls;
};

// `moved` bytes are those that one call moves, `held` those that one set takes; all sets take at most
// `memory` bytes, which may leave fewer than the state asks for.
CallGroup plan_calls(L2State state, int64_t moved, int64_t held, int64_t memory);

}  // namespace kvrope::regress
