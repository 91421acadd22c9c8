// What the scheduler's numbers mean: the slot of a row, behind the sliding-window table where there is one,
// and the effective position of a token on each axis. Nothing is read outside an array.
#pragma once

#include <cstdint>

#include "rope_cache_params.h"

namespace kvrope {

template <typename Index>
KVROPE_HOST_DEVICE const char* place_of_index(const BasicIndexArray<Index>& array, Index i) {
  return static_cast<const char*>(array.data) + product(i, array.byte_stride);
}

template <typename Index>
KVROPE_HOST_DEVICE int64_t load_index(const BasicIndexArray<Index>& array, Index i) {
  const void* at = place_of_index(array, i);
  return array.is_int64 ? *static_cast<const int64_t*>(at) : int64_t{*static_cast<const int32_t*>(at)};
}

// The slot of a row in the cache, or -1 where the row is not cached for whatever reason: tested before the
// window table is read and again after.
template <typename Index>
KVROPE_HOST_DEVICE int64_t cache_slot(const BasicRopeCacheParams<Index>& p, Index row) {
  int64_t slot = row < p.slot_mapping.size ? load_index(p.slot_mapping, row) : -1;
  if (p.has_swa) {
    const bool is_inside = is_index(slot, p.swa_slot_mapping.size);
    slot = is_inside ? load_index(p.swa_slot_mapping, static_cast<Index>(slot)) : -1;
  }
  return is_index(slot, p.num_slots) ? slot : -1;
}

enum class SlotState : uint8_t { valid, padding, slot_out_of_range, window_out_of_range, no_cache };

struct Slot {
  SlotState state;
  int64_t value;  // the slot in the cache when valid; what stood in the argument when out of range
};

// The same with the reason: padding is expected, out of range is a fault.
template <typename Index>
KVROPE_HOST_DEVICE Slot resolve_slot(const BasicRopeCacheParams<Index>& p, Index row) {
  if (!p.has_cache) return {SlotState::no_cache, -1};
  if (row >= p.slot_mapping.size) return {SlotState::padding, -1};
  const int64_t slot = load_index(p.slot_mapping, row);
  if (slot < 0) return {SlotState::padding, slot};
  if (!p.has_swa)
    return {is_index(slot, p.num_slots) ? SlotState::valid : SlotState::slot_out_of_range, slot};
  if (!is_index(slot, p.swa_slot_mapping.size)) return {SlotState::slot_out_of_range, slot};
  const int64_t window_slot = load_index(p.swa_slot_mapping, static_cast<Index>(slot));
  if (window_slot < 0) return {SlotState::padding, window_slot};
  return {is_index(window_slot, p.num_slots) ? SlotState::valid : SlotState::window_out_of_range,
          window_slot};
}

template <typename Index>
struct SlotInBlock {
  Index block, offset;
};

template <typename Index>
KVROPE_HOST_DEVICE SlotInBlock<Index> locate(Index slot, const Divisor<Index>& block_size) {
  const Index block = block_size.quotient(slot);
  return {block, slot - block * block_size.divisor};
}

// Where the sum does not fit in 64 bits, the nearest number that does: out of range in any table.
KVROPE_HOST_DEVICE int64_t saturated_sum(int64_t a, int64_t b) {
  const int64_t sum = static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  const bool overflows = ((a ^ sum) & (b ^ sum)) < 0;
  return !overflows ? sum : a < 0 ? INT64_MIN : INT64_MAX;
}

// One of the rows of pos (3, T).
template <typename Index>
KVROPE_HOST_DEVICE BasicIndexArray<Index> pos_of_axis(const BasicRopeCacheParams<Index>& p, int axis) {
  const int64_t offset = product(static_cast<Index>(axis), p.pos_axis_stride) * (p.pos.is_int64 ? 8 : 4);
  return {static_cast<const char*>(p.pos.data) + offset, p.pos.size, p.pos.byte_stride, p.pos.is_int64};
}

template <typename Index>
KVROPE_HOST_DEVICE int64_t effective_position(const BasicRopeCacheParams<Index>& p, Index token, int axis) {
  const int64_t pos = load_index(pos_of_axis(p, axis), token);
  return p.has_offs ? saturated_sum(pos, load_index(p.offs, token)) : pos;
}

template <typename Index>
KVROPE_HOST_DEVICE bool is_in_table(const BasicRopeCacheParams<Index>& p, int64_t position) {
  return is_index(position, p.cos_sin.num_rows);
}

// The position that decides whether a token has one: of the first axis where it is not in the table, or of
// the last. kMaxAxes: on how many it may have one of its own.
template <int kMaxAxes, typename Index>
KVROPE_HOST_DEVICE int64_t deciding_position(const BasicRopeCacheParams<Index>& p, Index token) {
  int64_t position = effective_position(p, token, 0);
  for (int axis = 1; axis < kMaxAxes && p.pos_axis_stride != 0 && is_in_table(p, position); ++axis) {
    position = effective_position(p, token, axis);
  }
  return position;
}

}  // namespace kvrope
