#include "runner/row_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "runner/json_document.h"
#include "runner/random.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kLeastTableRows = 256;
constexpr int64_t kMostTableRows = 1 << 20;  // that a table has without being told
constexpr int64_t kMostWindowEntries = 1 << 27;
constexpr int64_t kSpareBlocks = 2;  // that no row addresses

// A row's place in its request: what decides the block of a paged cache it goes to.
struct LogicalRow {
  int64_t request, index;
};

int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// --- Positions

std::vector<int64_t> plan_offsets(const OffsetsSpec& offsets, int64_t tokens, int64_t seed) {
  if (offsets.chosen() == OffsetsSpec::Pattern::explicit_values) return *offsets.values;
  std::vector<int64_t> values(static_cast<size_t>(tokens), offsets.value.value_or(0));
  if (offsets.chosen() == OffsetsSpec::Pattern::random) {
    Random random(seed, "offsets");
    for (int64_t& value : values) value = random.below(offsets.limit.value_or(16));
  }
  return values;
}

// Random positions are those after the offset, all in the table.
std::vector<int64_t> plan_positions(const CaseSpec& spec,
                                    const std::optional<std::vector<int64_t>>& offsets) {
  const PositionsSpec& positions = spec.positions;
  if (positions.chosen() == PositionsSpec::Pattern::explicit_values) return positions.values->front();
  std::vector<int64_t> values(static_cast<size_t>(spec.tokens()));
  switch (positions.chosen()) {
    case PositionsSpec::Pattern::requests: {
      auto next = values.begin();
      for (const Request& request : *positions.requests) {
        std::iota(next, next + request.length, request.start);
        next += request.length;
      }
      break;
    }
    case PositionsSpec::Pattern::random: {
      Random random(spec.seed, "positions");
      for (size_t i = 0; i < values.size(); ++i) {
        values[i] = random.below(spec.table.rows.value_or(kLeastTableRows));
        if (offsets && i < offsets->size()) values[i] -= (*offsets)[i];
      }
      break;
    }
    default:
      std::iota(values.begin(), values.end(), positions.start.value_or(0));
  }
  return values;
}

// Positions of an axis other than the first, drawn for each row, so that no two axes are alike. An image has
// few rows and columns; random positions lie anywhere in the table. All are those after the offset.
std::vector<int64_t> draw_positions_of_axis(const CaseSpec& spec, size_t axis, size_t count,
                                            const std::optional<std::vector<int64_t>>& offsets) {
  bool is_anywhere = spec.positions.chosen() == PositionsSpec::Pattern::random;
  int64_t limit = spec.table.rows.value_or(kLeastTableRows);
  if (!is_anywhere) limit = std::min(limit, kLeastTableRows);
  Random random(spec.seed, "positions of axis " + std::to_string(axis));
  std::vector<int64_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = random.below(limit);
    if (offsets && i < offsets->size()) values[i] -= (*offsets)[i];
  }
  return values;
}

std::vector<std::vector<int64_t>> plan_axes(const CaseSpec& spec,
                                            const std::optional<std::vector<int64_t>>& offsets) {
  if (spec.positions.values && spec.positions.values->size() > 1) return *spec.positions.values;
  std::vector<std::vector<int64_t>> axes = {plan_positions(spec, offsets)};
  for (auto axis = size_t{1}; axis < static_cast<size_t>(spec.position_axes()); ++axis) {
    axes.push_back(draw_positions_of_axis(spec, axis, axes.front().size(), offsets));
  }
  return axes;
}

// int64 wraps here and nowhere else: positions near its ends need a table whose size is given.
int64_t plan_table_rows(const CaseSpec& spec, const RowPlan& plan) {
  if (spec.table.rows) return *spec.table.rows;
  int64_t rows = kLeastTableRows;
  for (const std::vector<int64_t>& axis : plan.pos) {
    for (size_t i = 0; i < axis.size(); ++i) {
      int64_t offset = plan.offs && i < plan.offs->size() ? (*plan.offs)[i] : 0;
      auto position = static_cast<int64_t>(static_cast<uint64_t>(axis[i]) + static_cast<uint64_t>(offset));
      if (position < kMostTableRows) rows = std::max(rows, position + 1);
    }
  }
  return rows;
}

// --- Slots

std::vector<LogicalRow> logical_rows(const CaseSpec& spec) {
  std::vector<LogicalRow> rows;
  int64_t tokens = std::min(spec.tokens(), spec.slots_length());
  if (spec.positions.chosen() == PositionsSpec::Pattern::requests) {
    int64_t request = 0;
    for (const Request& r : *spec.positions.requests) {
      for (int64_t i = 0; i < r.length; ++i) rows.push_back({request, r.start + i});
      ++request;
    }
    rows.resize(static_cast<size_t>(tokens));
  } else {
    int64_t start = spec.positions.start.value_or(0);
    for (int64_t i = 0; i < tokens; ++i) rows.push_back({0, start + i});
  }
  // Rows beyond the tokens belong to a request of their own.
  for (int64_t i = tokens; i < spec.slots_length(); ++i) rows.push_back({-1, i - tokens});
  return rows;
}

// `count` different values of 0 .. limit - 1 in random order.
std::vector<int64_t> draw_distinct(int64_t count, int64_t limit, int64_t seed, const char* use) {
  Random random(seed, use);
  std::vector<int64_t> drawn;
  if (limit / 4 > count) {  // few of many: drawing again is rare, and no list of all is needed
    std::set<int64_t> seen;
    while (static_cast<int64_t>(drawn.size()) < count) {
      int64_t value = random.below(limit);
      if (seen.insert(value).second) drawn.push_back(value);
    }
    return drawn;
  }
  drawn.resize(static_cast<size_t>(limit));
  std::iota(drawn.begin(), drawn.end(), 0);
  random.shuffle(drawn);
  drawn.resize(static_cast<size_t>(count));
  return drawn;
}

using BlockTable =
    std::map<std::pair<int64_t, int64_t>, int64_t>;  // request and its block number -> block of the cache

BlockTable logical_blocks(const std::vector<LogicalRow>& rows, int64_t block_size) {
  BlockTable blocks;
  for (const LogicalRow& row : rows) blocks[{row.request, row.index / block_size}] = 0;
  return blocks;
}

std::vector<int64_t> slots_in_scattered_blocks(const std::vector<LogicalRow>& rows, int64_t pool_blocks,
                                               const CaseSpec& spec) {
  BlockTable blocks = logical_blocks(rows, spec.block_size);
  std::vector<int64_t> drawn =
      draw_distinct(static_cast<int64_t>(blocks.size()), pool_blocks, spec.seed, "slots");
  for (auto& [logical, block] : blocks) {
    block = drawn.back();
    drawn.pop_back();
  }
  std::vector<int64_t> slots;
  for (const LogicalRow& row : rows) {
    int64_t block = blocks.at({row.request, row.index / spec.block_size});
    slots.push_back(block * spec.block_size + row.index % spec.block_size);
  }
  return slots;
}

int64_t blocks_needed(const CaseSpec& spec, const std::vector<LogicalRow>& rows) {
  auto count = static_cast<int64_t>(rows.size());
  switch (spec.slots.chosen()) {
    case SlotsSpec::Pattern::sequential:
      return ceil_divide(spec.slots.start.value_or(0) + count, spec.block_size);
    case SlotsSpec::Pattern::random:
      return ceil_divide(count, spec.block_size);
    case SlotsSpec::Pattern::blocks:
      return static_cast<int64_t>(logical_blocks(rows, spec.block_size).size());
    case SlotsSpec::Pattern::explicit_values:
      break;
  }
  constexpr int64_t kMostBlocksUntold = 1 << 12;
  int64_t largest = -1;
  for (int64_t slot : *spec.slots.values) largest = std::max(largest, slot);
  return std::min(largest / spec.block_size, kMostBlocksUntold - 1) + 1;
}

[[noreturn]] void too_few_blocks(const CaseSpec& spec, int64_t needed, int64_t got) {
  throw FileError(spec.pointer + "/num_blocks", "must be at least " + std::to_string(needed) +
                                                    " for these slots, got " + std::to_string(got));
}

std::vector<int64_t> plan_slots(const CaseSpec& spec, const std::vector<LogicalRow>& rows,
                                int64_t pool_blocks) {
  auto count = static_cast<int64_t>(rows.size());
  SlotsSpec::Pattern pattern = spec.slots.chosen();
  if (pattern == SlotsSpec::Pattern::explicit_values) return *spec.slots.values;
  if (pattern == SlotsSpec::Pattern::sequential) {
    std::vector<int64_t> slots(rows.size());
    std::iota(slots.begin(), slots.end(), spec.slots.start.value_or(0));
    return slots;
  }
  int64_t needed = blocks_needed(spec, rows);
  if (pool_blocks < needed) too_few_blocks(spec, needed, pool_blocks);
  if (pattern == SlotsSpec::Pattern::random) {
    return draw_distinct(count, pool_blocks * spec.block_size, spec.seed, "slots");
  }
  return slots_in_scattered_blocks(rows, pool_blocks, spec);
}

int64_t some_negative(int64_t i, int64_t block_size, IndexDType dtype) {
  int64_t lowest =
      dtype == IndexDType::int32 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  const int64_t values[] = {-1, -block_size, lowest};
  return values[i % 3];
}

void pad_slots(const CaseSpec& spec, std::vector<int64_t>& slots) {
  std::vector<int64_t> padded;
  if (const auto* rows = std::get_if<std::vector<int64_t>>(&spec.slots.padding)) {
    padded = *rows;
  } else {
    padded.resize(slots.size());
    std::iota(padded.begin(), padded.end(), 0);
    Random random(spec.seed, "padding");
    random.shuffle(padded);
    padded.resize(static_cast<size_t>(std::llround(std::get<double>(spec.slots.padding) * padded.size())));
  }
  int64_t i = 0;
  for (int64_t row : padded) {
    slots[static_cast<size_t>(row)] = some_negative(i++, spec.block_size, spec.slots.dtype);
  }
}

// --- Window table

std::vector<bool> evicted_rows(const CaseSpec& spec, const std::vector<LogicalRow>& rows) {
  std::vector<bool> evicted(rows.size(), false);
  const WindowSpec& window = *spec.slots.swa;
  if (window.window) {
    std::map<int64_t, int64_t> newest;
    for (const LogicalRow& row : rows) newest[row.request] = std::max(newest[row.request], row.index);
    for (size_t i = 0; i < rows.size(); ++i)
      evicted[i] = rows[i].index <= newest[rows[i].request] - *window.window;
  }
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), 0);
  Random random(spec.seed, "evicted");
  random.shuffle(order);
  order.resize(
      static_cast<size_t>(std::llround(window.evicted.value_or(0) * static_cast<double>(rows.size()))));
  for (size_t row : order) evicted[row] = true;
  return evicted;
}

// Rows in the window take random slots of the caches. Entries that no row reads hold a slot that none
// addresses, so that reading a wrong entry shows.
std::vector<int64_t> plan_window_table(const CaseSpec& spec, const std::vector<LogicalRow>& rows,
                                       const std::vector<int64_t>& slots, int64_t pool_blocks,
                                       int64_t num_blocks) {
  const WindowSpec& window = *spec.slots.swa;
  if (window.values) return *window.values;
  int64_t capacity = num_blocks * spec.block_size;
  // One more than the rows may take is for the entries that none reads.
  int64_t most = std::min(capacity, static_cast<int64_t>(slots.size()) + 1);
  std::vector<int64_t> free_slots = draw_distinct(most, capacity, spec.seed, "window");
  std::vector<bool> evicted = evicted_rows(spec, rows);
  std::map<int64_t, int64_t> entries;
  for (size_t row = 0; row < slots.size(); ++row) {
    bool is_in_table = slots[row] >= 0 && slots[row] < pool_blocks * spec.block_size;
    if (!is_in_table || entries.count(slots[row])) continue;
    if (evicted[row]) {
      entries[slots[row]] = some_negative(static_cast<int64_t>(row), spec.block_size, window.dtype);
      continue;
    }
    if (free_slots.empty()) {
      too_few_blocks(spec, ceil_divide(static_cast<int64_t>(slots.size()), spec.block_size), num_blocks);
    }
    entries[slots[row]] = free_slots.back();
    free_slots.pop_back();
  }
  int64_t unread = free_slots.empty() ? -1 : free_slots.back();
  std::vector<int64_t> table(static_cast<size_t>(pool_blocks * spec.block_size), unread);
  for (auto [slot, entry] : entries) table[static_cast<size_t>(slot)] = entry;
  return table;
}

// --- All together

void require_int32(const CaseSpec& spec, const std::vector<int64_t>& values, IndexDType dtype,
                   const std::string& key) {
  if (dtype == IndexDType::int64) return;
  for (int64_t value : values) {
    bool fits = value >= std::numeric_limits<int32_t>::min() && value <= std::numeric_limits<int32_t>::max();
    if (!fits) throw FileError(spec.pointer + "/" + key, "must fit int32, got " + std::to_string(value));
  }
}

int64_t find_unused_slot(const RowPlan& plan, int64_t capacity) {
  std::set<int64_t> used;
  for (size_t row = 0; row < plan.slot_mapping.size(); ++row) {
    used.insert(destination(plan, capacity, static_cast<int64_t>(row)).slot);
  }
  int64_t candidates = capacity;
  if (plan.swa_slot_mapping) candidates = static_cast<int64_t>(plan.swa_slot_mapping->size());
  for (int64_t slot = 0; slot < candidates; ++slot) {
    int64_t translated = plan.swa_slot_mapping ? (*plan.swa_slot_mapping)[static_cast<size_t>(slot)] : slot;
    if (translated >= 0 && translated < capacity && !used.count(translated)) return slot;
  }
  return -1;
}

}  // namespace

RowPlan plan_rows(const CaseSpec& spec) {
  RowPlan plan;
  if (spec.positions.offsets) plan.offs = plan_offsets(*spec.positions.offsets, spec.tokens(), spec.seed);
  plan.pos = plan_axes(spec, plan.offs);
  plan.table_rows = plan_table_rows(spec, plan);

  std::vector<LogicalRow> rows = logical_rows(spec);
  int64_t needed = blocks_needed(spec, rows);
  int64_t pool_blocks = spec.num_blocks.value_or(needed + kSpareBlocks);
  plan.num_blocks = pool_blocks;
  if (spec.slots.swa) {
    // The slots are those of a full cache; the caches of the call are the window's, and smaller.
    int64_t for_rows = ceil_divide(spec.slots_length(), spec.block_size) + kSpareBlocks;
    plan.num_blocks = spec.num_blocks.value_or(for_rows);
    pool_blocks = 2 * std::max(needed, plan.num_blocks);
    if (!spec.slots.swa->values && pool_blocks > kMostWindowEntries / spec.block_size) {
      throw FileError(spec.pointer + "/num_blocks", "must give at most " +
                                                        std::to_string(kMostWindowEntries / 2) +
                                                        " slots where a window table is made");
    }
  }
  plan.slot_mapping = plan_slots(spec, rows, pool_blocks);
  pad_slots(spec, plan.slot_mapping);
  if (spec.slots.swa) {
    plan.swa_slot_mapping = plan_window_table(spec, rows, plan.slot_mapping, pool_blocks, plan.num_blocks);
  }
  plan.unused_slot = find_unused_slot(plan, plan.num_blocks * spec.block_size);

  for (const std::vector<int64_t>& axis : plan.pos)
    require_int32(spec, axis, spec.positions.dtype, "positions");
  if (plan.offs) require_int32(spec, *plan.offs, spec.positions.offsets->dtype, "positions/offsets");
  require_int32(spec, plan.slot_mapping, spec.slots.dtype, "slots");
  if (plan.swa_slot_mapping) require_int32(spec, *plan.swa_slot_mapping, spec.slots.swa->dtype, "slots/swa");
  return plan;
}

Destination destination(const RowPlan& plan, int64_t capacity, int64_t row) {
  using Kind = Destination::Kind;
  if (row >= static_cast<int64_t>(plan.slot_mapping.size())) return {Kind::padding};
  int64_t slot = plan.slot_mapping[static_cast<size_t>(row)];
  if (slot < 0) return {Kind::padding};
  if (plan.swa_slot_mapping) {
    if (slot >= static_cast<int64_t>(plan.swa_slot_mapping->size())) return {Kind::out_of_range};
    slot = (*plan.swa_slot_mapping)[static_cast<size_t>(slot)];
    if (slot < 0) return {Kind::padding};
  }
  if (slot >= capacity) return {Kind::out_of_range};
  return {Kind::slot, slot};
}

}  // namespace kvrope::regress
