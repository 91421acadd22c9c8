#include "recorded_rows.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <vector>

namespace kvrope {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t kMostExplicitRows = 1024;  // above, patterns stand for values where they can
constexpr int64_t kMostTableRows = 32768;    // more are not needed to reach the same code
constexpr int64_t kMostPositions = 2147483647;

Numbers read(const at::Tensor& tensor) {
  const at::Tensor host = tensor.to(at::kCPU, at::kLong).contiguous();
  return {host.const_data_ptr<int64_t>(), host.const_data_ptr<int64_t>() + host.numel()};
}

const char* index_dtype(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kInt ? "int32" : "int64";
}

int64_t wrapping_sum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}

// What the call reads, and where each row goes.
struct Rows {
  std::vector<Numbers> axes;  // of positions
  Numbers offs, slots, window;
  bool has_window;
  int64_t capacity, block_size, table_rows;

  enum class Kind { live, padding, evicted, bad };
  // The slot of the caches too, where the row is live.
  Kind kind(size_t row, int64_t* slot = nullptr) const {
    if (row >= slots.size() || slots[row] < 0) return Kind::padding;
    int64_t translated = slots[row];
    if (has_window) {
      if (translated >= static_cast<int64_t>(window.size())) return Kind::bad;
      translated = window[static_cast<size_t>(translated)];
      if (translated < 0) return Kind::evicted;
    }
    if (slot != nullptr) *slot = translated;
    return translated >= capacity ? Kind::bad : Kind::live;
  }
  const Numbers& pos() const { return axes.front(); }
  int64_t position(const Numbers& axis, size_t row) const {
    return offs.empty() ? axis[row] : wrapping_sum(axis[row], offs[row]);
  }
  bool is_in_table(size_t row) const {
    return std::all_of(axes.begin(), axes.end(), [&](const Numbers& axis) {
      return position(axis, row) >= 0 && position(axis, row) < table_rows;
    });
  }
};

std::vector<Numbers> read_axes(const at::Tensor& pos) {
  if (pos.dim() == 1) return {read(pos)};
  std::vector<Numbers> axes;
  for (int64_t axis = 0; axis < pos.size(0); ++axis) axes.push_back(read(pos[axis]));
  return axes;
}

Rows read_all(const FusedArguments& args, int64_t num_blocks, int64_t block_size) {
  Rows rows{
      read_axes(args.pos),     {},         read(args.slot_mapping), {}, args.swa_slot_mapping.has_value(),
      num_blocks * block_size, block_size, args.cos_sin.size(0)};
  if (args.offs) rows.offs = read(*args.offs);
  if (args.swa_slot_mapping) rows.window = read(*args.swa_slot_mapping);
  return rows;
}

bool any_row_is_bad(const Rows& rows) {
  for (size_t row = 0; row < std::max(rows.pos().size(), rows.slots.size()); ++row) {
    const Rows::Kind kind = rows.kind(row);
    const bool is_padding = kind == Rows::Kind::padding || kind == Rows::Kind::evicted;
    if (kind == Rows::Kind::bad || (!is_padding && row < rows.pos().size() && !rows.is_in_table(row)))
      return true;
  }
  return false;
}

// --- Positions

Json requests_of(const Numbers& pos) {
  Json requests = Json::array();
  for (size_t first = 0; first < pos.size();) {
    size_t end = first + 1;
    while (end < pos.size() && pos[end] == pos[end - 1] + 1) ++end;
    requests.push_back({{"start", pos[first]}, {"length", end - first}});
    first = end;
  }
  return requests;
}

void describe_positions(const Rows& rows, bool is_exact, RecordedRows& out) {
  const Numbers& pos = rows.pos();
  bool all_in_table = true;
  for (size_t row = 0; row < pos.size(); ++row) all_in_table = all_in_table && rows.is_in_table(row);
  const Json requests = all_in_table && rows.offs.empty() ? requests_of(pos) : Json::array();
  const bool are_runs = requests.size() > 1 && 2 * requests.size() <= pos.size();
  const char* pattern = "random";
  if (requests.size() == 1) pattern = "contiguous";
  if (are_runs) pattern = "requests";
  if (!all_in_table) pattern = "explicit";
  out.pattern["positions"] = pattern;

  const bool has_offsets = !rows.offs.empty();
  const bool is_explicit = is_exact || !all_in_table || (has_offsets && pos.size() <= kMostExplicitRows);
  if (is_explicit) {
    out.positions["values"] = rows.axes.size() == 1 ? Json(pos) : Json(rows.axes);
    if (has_offsets) out.positions["offsets"]["values"] = rows.offs;
  } else if (requests.size() == 1) {
    out.positions["start"] = pos.front();
  } else if (are_runs) {
    out.positions["requests"] = requests;
  } else if (!pos.empty()) {
    out.positions["pattern"] = "random";
    if (has_offsets) out.positions["offsets"]["pattern"] = "random";
  }
}

// Positions of three axes are what a case with a section has, unless it says otherwise.
void add_axes(const FusedArguments& args, RecordedRows& out) {
  if (!args.mrope_section) return;
  const bool has_axes = args.pos.dim() == 2;
  out.pattern["axes"] = has_axes;
  if (!has_axes) out.positions["axes"] = 1;
}

// --- Slots

struct SlotPattern {
  const char* name;
  Numbers padding;  // rows with a negative slot
  int64_t evicted = 0, live = 0, first = 0;
  bool has_duplicates = false;
};

SlotPattern find_pattern(const Rows& rows) {
  SlotPattern found{"random", {}};
  std::set<int64_t> addressed;
  bool is_sequential = true, is_paged = true;
  for (size_t row = 0; row < rows.slots.size(); ++row) {
    int64_t slot = -1;
    const Rows::Kind kind = rows.kind(row, &slot);
    if (kind == Rows::Kind::padding) found.padding.push_back(static_cast<int64_t>(row));
    if (kind == Rows::Kind::evicted) ++found.evicted;
    if (kind != Rows::Kind::live) continue;
    const int64_t given = rows.slots[row] - static_cast<int64_t>(row);
    if (found.live++ == 0) found.first = given;
    is_sequential = is_sequential && given == found.first && given >= 0;
    is_paged =
        is_paged && row < rows.pos().size() && slot % rows.block_size == rows.pos()[row] % rows.block_size;
    found.has_duplicates = !addressed.insert(slot).second || found.has_duplicates;
  }
  if (is_paged && found.live > 1) found.name = "blocks";
  if (is_sequential) found.name = "sequential";
  return found;
}

std::string padding_name(const SlotPattern& found, size_t rows) {
  if (found.padding.empty()) return "none";
  if (found.padding.size() == rows) return "all";
  const bool is_tail = found.padding.front() == static_cast<int64_t>(rows - found.padding.size());
  return is_tail ? "tail" : "scattered";
}

// Blocks in use get the numbers 0, 1, ... in their order; what lies beyond the end stays beyond it by as
// much.
class Renumbering {
 public:
  Renumbering(const Numbers& slots, int64_t limit, int64_t block_size)
      : limit_(limit), block_size_(block_size) {
    for (int64_t slot : slots) {
      if (slot >= 0 && slot < limit) numbers_[slot / block_size] = 0;
    }
    int64_t next = 0;
    for (auto& [block, number] : numbers_) number = next++;
  }
  int64_t blocks() const { return static_cast<int64_t>(numbers_.size()); }
  int64_t apply(int64_t slot, int64_t new_limit) const {
    if (slot < 0) return slot;
    if (slot >= limit_) return wrapping_sum(new_limit, slot - limit_);
    return numbers_.at(slot / block_size_) * block_size_ + slot % block_size_;
  }

 private:
  int64_t limit_, block_size_;
  std::map<int64_t, int64_t> numbers_;
};

Numbers renumbered(const Renumbering& blocks, const Numbers& slots, int64_t new_limit) {
  Numbers result;
  for (int64_t slot : slots) result.push_back(blocks.apply(slot, new_limit));
  return result;
}

// The values themselves, in caches of no more blocks than they use.
void give_slots(const Rows& rows, int64_t num_blocks, bool keeps_blocks, RecordedRows& out) {
  constexpr int64_t kSpareBlocks = 2;
  const int64_t block_size = rows.block_size;
  Numbers cache_slots = rows.slots;
  int64_t table_size = 0;
  if (rows.has_window) {
    table_size = static_cast<int64_t>(rows.window.size());
    const Renumbering entries(rows.slots, table_size, block_size);
    // The last block of the table may be short: nothing may appear behind its end.
    const int64_t new_size = entries.blocks() == 0 ? 0 : entries.blocks() * block_size;
    Numbers table(static_cast<size_t>(new_size), -1);
    for (int64_t slot : rows.slots) {
      if (slot < 0 || slot >= table_size) continue;
      table[static_cast<size_t>(entries.apply(slot, new_size))] = rows.window[static_cast<size_t>(slot)];
    }
    out.slots["values"] = renumbered(entries, rows.slots, new_size);
    cache_slots = table;
  }
  const Renumbering blocks(cache_slots, rows.capacity, block_size);
  out.num_blocks = keeps_blocks ? num_blocks : std::min(num_blocks, blocks.blocks() + kSpareBlocks);
  const Numbers result =
      keeps_blocks ? cache_slots : renumbered(blocks, cache_slots, out.num_blocks * block_size);
  if (rows.has_window) {
    out.slots["swa"]["values"] = result;
  } else {
    out.slots["values"] = result;
  }
}

// Random slots lie in blocks of their own, where that does not make the caches large.
int64_t blocks_for_random(int64_t rows, int64_t num_blocks, int64_t block_size) {
  const int64_t least = (rows + block_size - 1) / block_size;
  return std::max<int64_t>({least, 1, std::min({num_blocks, rows + 2, std::max<int64_t>(least + 2, 1024)})});
}

void describe_slots(const Rows& rows, int64_t num_blocks, bool keeps_blocks, bool is_exact,
                    RecordedRows& out) {
  SlotPattern found = find_pattern(rows);
  // Pages follow the positions in decode steps too, where each row has a page of its own.
  if (found.name == std::string("blocks") && out.pattern["positions"] == "random") found.name = "random";
  const size_t count = rows.slots.size();
  out.pattern["slots"] = found.name;
  out.pattern["padding"] = padding_name(found, count);
  if (rows.has_window) out.pattern["evicted"] = found.evicted > 0;
  if (found.has_duplicates) out.pattern["duplicates"] = true;

  const bool is_short = static_cast<int64_t>(count) <= kMostExplicitRows && !rows.has_window;
  if (is_exact || is_short || keeps_blocks || found.has_duplicates) {
    give_slots(rows, num_blocks, keeps_blocks, out);
    return;
  }
  const std::string name = found.name;
  out.slots["pattern"] = name;
  if (name == "sequential" && found.live > 0) out.slots["start"] = found.first % rows.block_size;
  if (static_cast<int64_t>(found.padding.size()) <= kMostExplicitRows) {
    if (!found.padding.empty()) out.slots["padding"] = found.padding;
  } else {
    out.slots["padding"] = static_cast<double>(found.padding.size()) / static_cast<double>(count);
  }
  if (rows.has_window) {
    out.slots["swa"]["evicted"] =
        count == 0 ? 0.0 : static_cast<double>(found.evicted) / static_cast<double>(count);
  } else if (name == "random") {
    out.num_blocks = blocks_for_random(static_cast<int64_t>(count), num_blocks, rows.block_size);
  }
}

// They tell calls apart, and calls with offs from those without.
void add_dtypes(const FusedArguments& args, RecordedRows& out) {
  Json& dtypes = out.pattern["dtypes"];
  dtypes["pos"] = out.positions["dtype"] = index_dtype(args.pos);
  dtypes["slots"] = out.slots["dtype"] = index_dtype(args.slot_mapping);
  if (args.offs) dtypes["offs"] = out.positions["offsets"]["dtype"] = index_dtype(*args.offs);
  if (args.swa_slot_mapping) dtypes["swa"] = out.slots["swa"]["dtype"] = index_dtype(*args.swa_slot_mapping);
}

}  // namespace

RecordedRows read_rows(const FusedArguments& args, int64_t num_blocks, int64_t block_size,
                       bool keeps_blocks) {
  const Rows rows = read_all(args, num_blocks, block_size);
  RecordedRows out;
  out.has_bad_row = any_row_is_bad(rows);
  if (out.has_bad_row) out.pattern["bad_row"] = true;
  describe_positions(rows, out.has_bad_row, out);
  add_axes(args, out);
  describe_slots(rows, num_blocks, keeps_blocks, out.has_bad_row, out);
  add_dtypes(args, out);

  int64_t largest = -1;
  for (const Numbers& axis : rows.axes) {
    for (size_t row = 0; row < axis.size(); ++row) {
      if (rows.is_in_table(row)) largest = std::max(largest, rows.position(axis, row));
    }
  }
  // A position behind the end of the table must stay there.
  const bool keeps_table = out.positions.contains("values");
  out.table_rows =
      keeps_table ? rows.table_rows : std::min(rows.table_rows, std::max(kMostTableRows, largest + 1));
  return out;
}

RecordedRows unknown_rows(const FusedArguments& args, int64_t num_blocks, int64_t block_size,
                          bool keeps_blocks) {
  RecordedRows out;
  out.pattern["captured"] = true;
  const bool has_table = args.cos_sin.size(0) > 0 && args.q.size(0) > 0;
  if (has_table) out.positions["pattern"] = "random";
  if (has_table && args.offs) out.positions["offsets"]["pattern"] = "random";
  add_axes(args, out);
  const int64_t count = args.slot_mapping.size(0);
  const bool fits = count <= num_blocks * block_size;
  out.slots["pattern"] = fits ? "random" : "sequential";
  if (!fits) out.slots["padding"] = 1.0;
  if (keeps_blocks || !fits) {
    out.num_blocks = num_blocks;
  } else if (!args.swa_slot_mapping) {
    out.num_blocks = blocks_for_random(count, num_blocks, block_size);
  }
  add_dtypes(args, out);
  out.table_rows = std::min(args.cos_sin.size(0), kMostTableRows);
  return out;
}

}  // namespace kvrope
