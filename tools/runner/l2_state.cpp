#include "runner/l2_state.h"

#include <algorithm>

namespace kvrope::regress {
namespace {

constexpr int64_t kCalls = 20;
constexpr int64_t kRotatingBytes = 600'000'000;
constexpr int64_t kMostSets = 512;

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

const std::vector<std::pair<std::string, L2State>>& l2_states() {
  static const std::vector<std::pair<std::string, L2State>> states = {
      {"warm", L2State::warm}, {"flushed", L2State::flushed}, {"rotating", L2State::rotating}};
  return states;
}

const char* name_of(L2State state) {
  for (const auto& [name, value] : l2_states()) {
    if (value == state) return name.c_str();
  }
  return "";
}

std::vector<L2State> l2_states_of(const CaseSpec& spec) {
  std::vector<L2State> chosen;
  for (const auto& [name, state] : l2_states()) {
    if (std::find(spec.tags.begin(), spec.tags.end(), name) != spec.tags.end()) chosen.push_back(state);
  }
  if (chosen.empty()) chosen.push_back(L2State::warm);
  return chosen;
}

CallGroup plan_calls(L2State state, int64_t moved, int64_t held, int64_t memory) {
  if (state == L2State::warm) return {1, kCalls};
  int64_t affordable = std::clamp(memory / std::max<int64_t>(held, 1), int64_t{1}, kMostSets);
  if (state == L2State::flushed) {
    int64_t sets = std::min(kCalls, affordable);
    return {sets, sets};
  }
  int64_t sets = std::min(kRotatingBytes / std::max<int64_t>(moved, 1) + 1, affordable);
  sets = std::max(sets, std::min<int64_t>(2, affordable));
  return {sets, ceil_divide(kCalls, sets) * sets};
}

}  // namespace kvrope::regress
