#include "cpu_kernel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cfenv>
#include <vector>

#include "slots.cuh"
#include "text.h"

namespace kvrope {
namespace {

// The slot of every row, -1 where it is not cached.
std::vector<int64_t> judge_rows(const char* operation, const RopeCacheParams& p) {
  std::vector<int64_t> slots(p.num_kv_rows, -1);
  for (int64_t row = 0; row < p.num_kv_rows; ++row) {
    const Slot slot = resolve_slot(p, row);
    TORCH_CHECK_INDEX(slot.state != SlotState::slot_out_of_range || p.has_swa,
                      text(operation, ": slot_mapping[", row, "] is ", slot.value, ", expected a slot below ",
                           p.num_slots, " (num_blocks * block_size)"));
    TORCH_CHECK_INDEX(slot.state != SlotState::slot_out_of_range,
                      text(operation, ": slot_mapping[", row, "] is ", slot.value, ", expected a slot below ",
                           p.swa_slot_mapping.size, " (the length of swa_slot_mapping)"));
    TORCH_CHECK_INDEX(slot.state != SlotState::window_out_of_range,
                      text(operation, ": swa_slot_mapping gives ", slot.value, " for row ", row,
                           ", expected a slot below ", p.num_slots, " (num_blocks * block_size)"));
    if (row < p.num_tokens && slot.state != SlotState::padding) {
      const int64_t position = deciding_position<kNumAxes>(p, row);
      TORCH_CHECK_INDEX(is_in_table(p, position),
                        text(operation, ": pos[", p.pos_axis_stride != 0 ? ":, " : "", row, "]",
                             p.has_offs ? " + offs" : "", " is ", position, ", expected 0 to ",
                             p.cos_sin.num_rows - 1, " (the rows of cos_sin)"));
    }
    if (slot.state == SlotState::valid) slots[row] = slot.value;
  }
  return slots;
}

// Slots, none negative: a hash table whose size is a power of two, at most half full.
class SlotSet {
 public:
  explicit SlotSet(size_t max_size) {
    while ((size_t{1} << log2_) < 2 * max_size) ++log2_;
    slots_.assign(size_t{1} << log2_, kFree);
  }

  // Whether the slot was not there yet.
  bool insert(int64_t slot) {
    for (size_t at = first_place(slot);; at = (at + 1) & (slots_.size() - 1)) {
      if (slots_[at] == slot) return false;
      if (slots_[at] != kFree) continue;
      slots_[at] = slot;
      return true;
    }
  }

 private:
  static constexpr int64_t kFree = -1;

  // The high bits of products with an odd constant, twice, so that slots at no regular distance meet.
  size_t first_place(int64_t slot) const {
    constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;  // 2^64 / golden ratio
    uint64_t mixed = static_cast<uint64_t>(slot) * kOdd;
    mixed ^= mixed >> 32;
    return (mixed * kOdd) >> (64 - log2_);
  }

  int log2_ = 1;
  std::vector<int64_t> slots_;
};

// Threads must not share a slot: the last row that asks for it gets it.
void keep_last_of_each_slot(std::vector<int64_t>& slots) {
  SlotSet taken(slots.size());
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    if (*slot >= 0 && !taken.insert(*slot)) *slot = -1;
  }
}

// The default floating-point environment of this thread, while it lives: a caller may have set another for
// some threads (torch.set_flush_denormal, fesetround), and the bits of a row must not depend on who serves
// it.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&callers_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&callers_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t callers_;
};

}  // namespace

void run_on_cpu(const char* operation, const RopeCacheParams& p, const CpuTarget& target) {
  std::vector<int64_t> slots = judge_rows(operation, p);
  keep_last_of_each_slot(slots);
  const int64_t elements_per_token = (p.num_q_heads + 2 * p.num_kv_heads) * int64_t{p.head_size};
  const int64_t grain = std::max<int64_t>(1, 32768 / elements_per_token);
  at::parallel_for(0, p.num_kv_rows, grain, [&](int64_t first, int64_t last) {
    const DefaultFloatEnvironment environment;
    target.serve_tokens(p, first, last, slots.data());
  });
}

}  // namespace kvrope
