#include "runner/call_bytes.h"

#include <algorithm>
#include <set>
#include <utility>

namespace kvrope::regress {
namespace {

int64_t size_of(IndexDType dtype) {
  return dtype == IndexDType::int32 ? 4 : 8;
}

struct CachedRows {
  int64_t rotated = 0, final = 0;  // rows below T, and the KV-only rows behind them
  int64_t window_entries = 0;

  int64_t all() const { return rotated + final; }
};

CachedRows count_cached(const CaseSpec& spec, const RowPlan& plan) {
  CachedRows cached;
  std::set<int64_t> entries;
  int64_t capacity = plan.num_blocks * spec.block_size;
  for (int64_t row = 0; row < static_cast<int64_t>(plan.slot_mapping.size()); ++row) {
    int64_t slot = plan.slot_mapping[static_cast<size_t>(row)];
    if (plan.swa_slot_mapping && slot >= 0) entries.insert(slot);
    if (destination(plan, capacity, row).kind != Destination::Kind::slot) continue;
    ++(row < spec.tokens() ? cached.rotated : cached.final);
  }
  cached.window_entries = static_cast<int64_t>(entries.size());
  return cached;
}

int64_t table_rows_touched(const RowPlan& plan, size_t axis) {
  std::set<uint64_t> rows;  // a sum that does not fit wraps: it is in no table anyway
  const std::vector<int64_t>& pos = plan.pos[axis];
  for (size_t i = 0; i < pos.size(); ++i) {
    rows.insert(static_cast<uint64_t>(pos[i]) + static_cast<uint64_t>(plan.offs ? (*plan.offs)[i] : 0));
  }
  return static_cast<int64_t>(rows.size());
}

// Of the rows that an axis of positions names, the columns of its frequencies.
int64_t table_elements_touched(const CaseSpec& spec, const RowPlan& plan) {
  if (plan.pos.size() == 1 || !spec.mrope) return table_rows_touched(plan, 0) * spec.table_width();
  int64_t pairs = spec.rotated_dims() / 2, elements = 0;
  for (size_t axis = 0; axis < plan.pos.size(); ++axis) {
    int64_t frequencies = 0;
    for (int64_t i = 0; i < pairs; ++i) frequencies += spec.mrope->axis_of(i) == static_cast<int64_t>(axis);
    if (frequencies > 0)
      elements += table_rows_touched(plan, axis) * (spec.table_width() * frequencies / pairs);
  }
  return elements;
}

int64_t index_bytes(const CaseSpec& spec, const RowPlan& plan, const CachedRows& cached) {
  auto positions = static_cast<int64_t>(plan.pos.size() * plan.pos.front().size());
  int64_t bytes = positions * size_of(spec.positions.dtype) +
                  static_cast<int64_t>(plan.slot_mapping.size()) * size_of(spec.slots.dtype) +
                  table_elements_touched(spec, plan) * bytes_of(spec.table_dtype);
  if (plan.offs) bytes += static_cast<int64_t>(plan.offs->size()) * size_of(spec.positions.offsets->dtype);
  if (plan.swa_slot_mapping) bytes += cached.window_entries * size_of(spec.slots.swa->dtype);
  bytes += (spec.norms_q() + spec.norms_k()) * spec.head_dim * bytes_of(spec.weight_format());
  return bytes;
}

}  // namespace

CallBytes call_bytes(const CaseSpec& spec, const RowPlan& plan) {
  CachedRows cached = count_cached(spec, plan);
  int64_t tokens = spec.tokens(), kv_only = spec.kv_rows() - tokens;
  int64_t item = bytes_of(spec.dtype), head = spec.head_dim;
  bool in_place = spec.inputs.in_place;
  auto changed = [&](bool is_in_place, bool is_normed) {  // dims of a row that are rewritten
    return is_in_place && !is_normed ? spec.rotated_dims() : head;
  };
  int64_t q_changed = changed(spec.q_is_in_place(), spec.norms_q()),
          k_changed = changed(in_place, spec.norms_k());

  CallBytes bytes;
  int64_t q_read = tokens * spec.q_heads * q_changed;
  int64_t k_read =
      tokens * k_changed + cached.rotated * (head - k_changed) + (in_place ? cached.final : kv_only) * head;
  bytes.rows_read = item * (q_read + spec.kv_heads * (k_read + cached.all() * spec.value_dim()));

  int64_t q_item = bytes_of(spec.q_out_format());
  int64_t k_written = tokens * k_changed + (in_place ? 0 : kv_only * head);
  bytes.rows_written = q_item * tokens * spec.q_heads * q_changed + item * spec.kv_heads * k_written;
  if (spec.outputs.zeros_out != OutputsSpec::Zeros::none)
    bytes.rows_written += item * tokens * spec.q_heads * head;
  bytes.rows_written +=
      cached.all() * spec.kv_heads * (head + spec.value_dim()) * bytes_of(spec.cache_format());
  bytes.indices = index_bytes(spec, plan, cached);
  return bytes;
}

int64_t partial_value_sectors(const CaseSpec& spec, const RowPlan& plan) {
  if (spec.layout != Layout::x_split) return 0;
  // Neighbouring slots of a block lie side by side, for each element of each head.
  int64_t slots_of_sector = std::min<int64_t>(32 / bytes_of(spec.cache_format()), spec.block_size);
  int64_t capacity = plan.num_blocks * spec.block_size;
  std::pair<int64_t, int64_t> sector = {-1, -1};  // block and sector in it, of the rows that stand together
  int64_t slots = 0, partial = 0;
  const auto end_run = [&] { partial += slots > 0 && slots < slots_of_sector; };
  for (int64_t row = 0; row < static_cast<int64_t>(plan.slot_mapping.size()); ++row) {
    int64_t slot = destination(plan, capacity, row).slot;
    if (slot < 0) continue;
    std::pair<int64_t, int64_t> next = {slot / spec.block_size, slot % spec.block_size / slots_of_sector};
    if (next != sector) end_run(), slots = 0;
    sector = next;
    ++slots;
  }
  end_run();
  return partial * spec.kv_heads * spec.value_dim();
}

double estimated_bytes(const CaseSpec& spec) {
  double q = static_cast<double>(spec.tokens()) * static_cast<double>(spec.q_heads * spec.head_dim);
  double kv = static_cast<double>(spec.kv_rows()) *
              static_cast<double>(spec.kv_heads * (spec.head_dim + spec.value_dim()));
  return 2 * bytes_of(spec.dtype) * (q + kv);
}

}  // namespace kvrope::regress
