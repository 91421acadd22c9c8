#include "cpu_kernel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <unordered_set>
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

// Threads must not share a slot: the last row that asks for it gets it.
void keep_last_of_each_slot(std::vector<int64_t>& slots) {
  std::unordered_set<int64_t> taken;
  taken.reserve(slots.size());
  for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
    if (*slot >= 0 && !taken.insert(*slot).second) *slot = -1;
  }
}

}  // namespace

void run_on_cpu(const char* operation, const RopeCacheParams& p, const CpuTarget& target) {
  std::vector<int64_t> slots = judge_rows(operation, p);
  keep_last_of_each_slot(slots);
  const int64_t elements_per_token = (p.num_q_heads + 2 * p.num_kv_heads) * int64_t{p.head_size};
  const int64_t grain = std::max<int64_t>(1, 32768 / elements_per_token);
  at::parallel_for(0, p.num_kv_rows, grain,
                   [&](int64_t first, int64_t last) { target.serve_tokens(p, first, last, slots.data()); });
}

}  // namespace kvrope
