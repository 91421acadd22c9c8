#include "cpu_kernel.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <unordered_set>
#include <vector>

#include "slots.cuh"
#include "text.h"

namespace kvrope {

// cpu_rows.cpp, compiled for each target. slots[t] is the slot of row t, or -1 where it is not cached.
using ServeTokens = void(const RopeCacheParams& p, int64_t first, int64_t last, const int64_t* slots);
namespace any_processor {
ServeTokens serve_tokens;
}
#ifdef KVROPE_HAS_X86_64_V3
namespace x86_64_v3 {
ServeTokens serve_tokens;
}
#endif

namespace {

ServeTokens* serve_tokens_for_this_processor() {
#ifdef KVROPE_HAS_X86_64_V3
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c") &&
      __builtin_cpu_supports("bmi2")) {
    return x86_64_v3::serve_tokens;
  }
#endif
  return any_processor::serve_tokens;
}

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
      const int64_t position = deciding_position(p, row);
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

void run_on_cpu(const char* operation, const RopeCacheParams& p) {
  std::vector<int64_t> slots = judge_rows(operation, p);
  keep_last_of_each_slot(slots);
  ServeTokens* const serve_tokens = serve_tokens_for_this_processor();
  const int64_t elements_per_token = (p.num_q_heads + 2 * p.num_kv_heads) * int64_t{p.head_size};
  const int64_t grain = std::max<int64_t>(1, 32768 / elements_per_token);
  at::parallel_for(0, p.num_kv_rows, grain,
                   [&](int64_t first, int64_t last) { serve_tokens(p, first, last, slots.data()); });
}

}  // namespace kvrope
