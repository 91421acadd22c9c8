// What the scheduler's numbers mean: the slot of a row, behind the sliding-window table where there is one, and the
// effective position of a row. Nothing is read outside an array and every judgement of SPEC "bad input" is made here.
#pragma once

#include <climits>

#include "rope_cache_params.h"

namespace kvrope {

KVROPE_HOST_DEVICE int64_t load_index(const IndexArray& array, int64_t i) {
  const int64_t at = i * array.stride;
  return array.is_int64 ? static_cast<const int64_t*>(array.data)[at]
                        : static_cast<int64_t>(static_cast<const int32_t*>(array.data)[at]);
}

enum class SlotState : uint8_t { valid, padding, slot_out_of_range, window_out_of_range, no_cache };

struct Slot {
  SlotState state;
  int64_t value;  // the slot in the cache when valid; what stood in the argument when out of range
};

// The slot of a row: tested before the window table is read and again after.
KVROPE_HOST_DEVICE Slot resolve_slot(const RopeCacheParams& p, int64_t row) {
  if (!p.has_cache) return {SlotState::no_cache, -1};
  if (row >= p.slot_mapping.size) return {SlotState::padding, -1};
  const int64_t slot = load_index(p.slot_mapping, row);
  if (slot < 0) return {SlotState::padding, slot};
  if (!p.has_swa) {
    return {slot < p.num_slots ? SlotState::valid : SlotState::slot_out_of_range, slot};
  }
  if (slot >= p.swa_slot_mapping.size) return {SlotState::slot_out_of_range, slot};
  const int64_t window_slot = load_index(p.swa_slot_mapping, slot);
  if (window_slot < 0) return {SlotState::padding, window_slot};
  return {window_slot < p.num_slots ? SlotState::valid : SlotState::window_out_of_range, window_slot};
}

struct SlotInBlock {
  int64_t block, offset;
};

KVROPE_HOST_DEVICE SlotInBlock locate(int64_t slot, int64_t block_size) {
  if (((slot | block_size) >> 32) == 0) {  // a 64-bit division costs a GPU thread some hundred instructions
    const uint32_t block = static_cast<uint32_t>(slot) / static_cast<uint32_t>(block_size);
    return {block, slot - static_cast<int64_t>(block) * block_size};
  }
  return {slot / block_size, slot % block_size};
}

// pos + offs; where the sum does not fit in 64 bits, the nearest value that does (out of range in any table).
KVROPE_HOST_DEVICE int64_t effective_position(const RopeCacheParams& p, int64_t token) {
  const int64_t pos = load_index(p.pos, token);
  if (!p.has_offs) return pos;
  const int64_t offs = load_index(p.offs, token);
  const int64_t sum = static_cast<int64_t>(static_cast<uint64_t>(pos) + static_cast<uint64_t>(offs));
  const bool overflows = ((pos ^ sum) & (offs ^ sum)) < 0;
  return !overflows ? sum : pos < 0 ? INT64_MIN : INT64_MAX;
}

KVROPE_HOST_DEVICE bool is_in_table(const RopeCacheParams& p, int64_t position) {
  return position >= 0 && position < p.cos_sin.num_rows;
}

}  // namespace kvrope
