// Valid cases. A key that has its default value is left out most of the time, so that defaults are drawn too.
#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "runner/fuzz_case.h"

namespace kvrope::regress {
namespace {

constexpr int64_t kElements = 30'000;  // of q, k and v together: what a case costs
constexpr int64_t kDefaultTableRows = 256;

std::vector<int64_t> first_integers(int64_t count) {
  std::vector<int64_t> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// --- Shapes

void draw_heads(FuzzDraft& draft, Draw& draw) {
  draft.kv_heads = draw.one_of<int64_t>({1, 1, 2, 2, 3, 4, 5});
  draft.q_heads = draft.kv_heads * draw.one_of<int64_t>({1, 2, 3, 4, 7});
  draft.head_dim =
      draw.chance(0.4) ? draw.one_of<int64_t>({32, 64, 64, 80, 96, 128}) : 2 * draw.between(1, 40);
  if (draw.chance(0.04)) draft.head_dim = draw.one_of<int64_t>({192, 256, 320, 512});
  draft.set("/q_heads", draft.q_heads);
  draft.set("/kv_heads", draft.kv_heads);
  draft.set("/head_dim", draft.head_dim);
  draft.value_dim = draft.head_dim;
  if (draw.chance(0.3)) draft.set("/v_head_dim", draft.value_dim = draw.between(1, 100));
  draft.rotary_dim = draft.head_dim;
  if (draw.chance(0.5)) {
    draft.set("/rotary_dim", draft.rotary_dim = 2 * draw.between(1, draft.head_dim / 2));
    draft.rotary_dim_offset = draw.between(0, draft.head_dim - draft.rotary_dim);
    if (draw.chance(0.5)) draft.rotary_dim_offset = 0;
    if (draft.rotary_dim_offset > 0) draft.set("/rotary_dim_offset", draft.rotary_dim_offset);
  }
}

void draw_rows(FuzzDraft& draft, Draw& draw, int64_t most_tokens) {
  int64_t row = draft.q_heads * draft.head_dim + draft.kv_heads * (draft.head_dim + draft.value_dim);
  int64_t most = std::min(most_tokens, std::max<int64_t>(1, kElements / row));
  draft.tokens = draw.chance(0.6) ? draw.between(1, std::min<int64_t>(most, 8)) : draw.between(1, most);
  if (draw.chance(0.03)) draft.tokens = 0;
  draft.kv_rows = draft.tokens;
  if (draw.chance(0.25)) draft.set("/num_kv_rows", draft.kv_rows += draw.between(0, 4));
  draft.slots = draft.tokens;
  if (draw.chance(0.25)) draft.set("/num_slots", draft.slots = draw.between(0, draft.kv_rows));
  draft.set("/num_tokens", draft.tokens);
}

void draw_dtypes(FuzzDraft& draft, Draw& draw) {
  if (draw.chance(0.7)) draft.set("/dtype", draw.one_of({"fp16", "bf16", "fp32"}));
  if (draw.chance(0.4)) draft.set("/table_dtype", draw.one_of({"fp16", "bf16", "fp32"}));
  if (draw.chance(0.5)) {
    draft.set("/kv_cache_dtype",
              draw.one_of({"auto", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_uint8", "fp8_e5m2_uint8"}));
  }
}

void draw_layout(FuzzDraft& draft, Draw& draw) {
  std::string layout =
      draw.one_of({"flash_nhd", "flash_nhd", "flash_hnd", "packed_kv", "x_split", "x_split_shuffle"});
  bool is_split = layout.starts_with("x_split");
  draft.set("/layout", layout);
  draft.block_size = draw.chance(0.5) ? draw.one_of<int64_t>({1, 8, 16, 32}) : draw.between(1, 40);
  if (is_split) {  // the default x need not divide the head size
    int64_t x = 1;
    while (x < 32 && draft.head_dim % (2 * x) == 0 && draw.chance(0.75)) x *= 2;
    draft.set("/x", x);
    if (layout == "x_split_shuffle") draft.block_size = x * std::max<int64_t>(1, draft.block_size / x);
  }
  draft.set("/block_size", draft.block_size);
  if (draw.chance(0.3)) draft.set("/page_padding", draw.between(0, 20));
}

// --- Table

// Not longrope: its lists have rotary_dim / 2 numbers, and that is a key of its own, which invalid cases and
// shrinking change.
void draw_scaling(FuzzDraft& draft, Draw& draw) {
  std::string type = draw.one_of({"default", "linear", "dynamic", "llama3", "yarn", "proportional"});
  draft.set(draw.chance(0.8) ? "/table/scaling/rope_type" : "/table/scaling/type", type);
  if (type == "default") return;
  draft.set("/table/scaling/factor", draw.one_of({1.0, 2.0, 8.0, 32.5}));
  if (type == "proportional")
    draft.set("/table/scaling/partial_rotary_factor", draw.one_of({0.25, 0.3, 1.0}));
  if (type == "linear" || type == "proportional") return;
  draft.set("/table/scaling/original_max_position_embeddings", draw.one_of({64, 4096, 8192}));
  if (type == "dynamic") return;
  if (type == "llama3") {
    if (draw.chance(0.5)) draft.set("/table/scaling/low_freq_factor", draw.one_of({0.5, 1.0}));
    if (draw.chance(0.5)) draft.set("/table/scaling/high_freq_factor", draw.one_of({2.0, 4.0}));
    return;
  }
  if (draw.chance(0.5)) draft.set("/table/scaling/beta_fast", draw.one_of({16.0, 32.0}));
  if (draw.chance(0.5)) draft.set("/table/scaling/beta_slow", draw.one_of({1.0, 2.0}));
  if (draw.chance(0.5)) draft.set("/table/scaling/attention_factor", draw.one_of({0.5, 1.2}));
  if (draw.chance(0.5)) draft.set("/table/scaling/mscale", draw.one_of({0.7, 1.0}));
  if (draw.chance(0.5)) draft.set("/table/scaling/mscale_all_dim", draw.one_of({0.5, 1.0}));
  if (draw.chance(0.5)) draft.set("/table/scaling/truncate", draw.chance(0.5));
}

void draw_table(FuzzDraft& draft, Draw& draw) {
  if (draw.chance(0.4)) draft.set("/table/width", draw.one_of({"half", "full"}));
  if (draw.chance(0.05)) draft.set("/table/width", draft.rotary_dim);
  if (draw.chance(0.3)) draft.set("/table/base", draw.one_of({2.0, 10000.0, 500000.0}));
  if (draw.chance(0.15)) draw_scaling(draft, draw);
  draft.table_rows = kDefaultTableRows;
  bool fits_default = draft.tokens + 60 <= kDefaultTableRows;
  if (fits_default && draw.chance(0.1)) return;
  draft.set("/table/rows", draft.table_rows = draft.tokens + 60 + draw.between(0, 40));
}

// --- Slots

std::vector<int64_t> distinct_slots(int64_t count, int64_t capacity, Draw& draw) {
  std::vector<int64_t> slots = first_integers(capacity);
  draw.random().shuffle(slots);
  slots.resize(static_cast<size_t>(count));
  return slots;
}

int64_t some_negative(Draw& draw, bool is_int32) {
  int64_t lowest = is_int32 ? std::numeric_limits<int32_t>::min() : std::numeric_limits<int64_t>::min();
  return draw.one_of<int64_t>({-1, -2, -1000, lowest});
}

// Slots below `capacity`, some negative; now and then two rows have one slot.
std::vector<int64_t> explicit_slots(FuzzDraft& draft, Draw& draw, int64_t capacity, bool is_int32) {
  std::vector<int64_t> slots = distinct_slots(draft.slots, capacity, draw);
  constexpr int64_t kKeepsTheLastRow = 256;  // beyond, a slot may get parts of several rows
  if (draft.slots >= 2 && draft.kv_rows <= kKeepsTheLastRow && draw.chance(0.1)) slots.front() = slots.back();
  for (size_t row = 0; row < slots.size(); ++row) {
    if (!draw.chance(0.1)) continue;
    slots[row] = some_negative(draw, is_int32);
    draft.padded_rows.insert(static_cast<int64_t>(row));
  }
  return slots;
}

// Blocks for all slots, and some to spare.
int64_t enough_blocks(const FuzzDraft& draft, int64_t slots, Draw& draw) {
  return (slots + draft.block_size - 1) / draft.block_size + draw.between(1, 3);
}

void draw_window_table(FuzzDraft& draft, Draw& draw, bool is_int32) {
  int64_t entries = draft.slots + draw.between(1, 10);
  int64_t blocks = enough_blocks(draft, entries, draw);
  draft.set("/num_blocks", blocks);
  draft.set("/slots/values", explicit_slots(draft, draw, entries, is_int32));
  std::vector<int64_t> table = distinct_slots(entries, blocks * draft.block_size, draw);
  for (int64_t& entry : table) {
    if (draw.chance(0.2)) entry = some_negative(draw, true);
  }
  draft.set("/slots/swa/values", table);
}

void draw_window(FuzzDraft& draft, Draw& draw, bool is_int32) {
  if (draw.chance(0.4)) draft.set("/slots/swa/dtype", draw.one_of({"int32", "int64"}));
  if (draw.chance(0.3)) {
    draw_window_table(draft, draw, is_int32);
    return;
  }
  if (draw.chance(0.5)) draft.set("/slots/pattern", draw.one_of({"sequential", "blocks", "random"}));
  draft.set("/slots/swa/window", draw.between(1, draft.tokens + 2));
  if (draw.chance(0.5)) draft.set("/slots/swa/evicted", draw.one_of({0.0, 0.25, 1.0}));
  if (draw.chance(0.3)) draft.set("/num_blocks", enough_blocks(draft, draft.slots, draw) + 1);
}

void draw_pattern(FuzzDraft& draft, Draw& draw, bool is_int32) {
  bool tells_blocks = draw.chance(0.5);
  std::string pattern = draw.one_of({"sequential", "blocks", "random", "explicit"});
  if (pattern != "sequential" || draw.chance(0.5)) draft.set("/slots/pattern", pattern);
  int64_t blocks = enough_blocks(draft, draft.slots, draw);
  if (pattern == "sequential" && draw.chance(0.5)) {
    int64_t start = draw.between(0, 50);
    draft.set("/slots/start", start);
    blocks = enough_blocks(draft, draft.slots + start, draw);
  } else if (pattern == "blocks") {
    blocks = draft.slots + 1;  // no request needs more
  } else if (pattern == "explicit") {
    draft.set("/slots/values", explicit_slots(draft, draw, blocks * draft.block_size, is_int32));
  }
  if (tells_blocks) draft.set("/num_blocks", blocks);
}

void draw_padding(FuzzDraft& draft, Draw& draw) {
  if (draw.chance(0.5)) {
    draft.set("/slots/padding", draw.one_of({0.0, 0.1, 0.5, 1.0}));
    return;
  }
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < draft.slots; ++row) {
    if (draw.chance(0.2)) rows.push_back(row);
  }
  draft.padded_rows.insert(rows.begin(), rows.end());
  draft.set("/slots/padding", rows);
}

void draw_slots(FuzzDraft& draft, Draw& draw) {
  bool is_int32 = draw.chance(0.5);
  if (is_int32 || draw.chance(0.3)) draft.set("/slots/dtype", is_int32 ? "int32" : "int64");
  if (draw.chance(0.2)) {
    draw_window(draft, draw, is_int32);
  } else {
    draw_pattern(draft, draw, is_int32);
  }
  if (draw.chance(0.25)) draw_padding(draft, draw);
  for (int64_t row = draft.slots; row < draft.tokens; ++row) draft.padded_rows.insert(row);
}

// --- Positions

struct Offsets {
  int64_t low = 0, high = 0;    // that any row may have
  std::vector<int64_t> values;  // of each row, where they are known
};

Offsets draw_offsets(FuzzDraft& draft, Draw& draw) {
  Offsets offsets{0, 0, std::vector<int64_t>(static_cast<size_t>(draft.tokens), 0)};
  if (!draw.chance(0.3)) return offsets;
  if (draw.chance(0.5)) draft.set("/positions/offsets/dtype", draw.one_of({"int32", "int64"}));
  std::string pattern = draw.one_of({"constant", "random", "explicit"});
  if (draw.chance(0.3) || pattern == "random") draft.set("/positions/offsets/pattern", pattern);
  if (pattern == "constant") {
    offsets.low = offsets.high = draw.between(-8, 20);
    draft.set("/positions/offsets/value", offsets.low);
    std::fill(offsets.values.begin(), offsets.values.end(), offsets.low);
  } else if (pattern == "random") {
    offsets = {0, draw.between(1, 20) - 1, {}};
    draft.set("/positions/offsets/limit", offsets.high + 1);
  } else {
    offsets.low = -20, offsets.high = 20;
    for (int64_t& value : offsets.values) value = draw.between(offsets.low, offsets.high);
    draft.set("/positions/offsets/values", offsets.values);
  }
  return offsets;
}

// A first position from which `count` rows stay in the table.
int64_t start_of_run(const FuzzDraft& draft, Draw& draw, const Offsets& offsets, int64_t count) {
  int64_t low = std::max<int64_t>(0, -offsets.low);
  return draw.between(low, draft.table_rows - offsets.high - std::max<int64_t>(count, 1));
}

void draw_requests(FuzzDraft& draft, Draw& draw, const Offsets& offsets) {
  Json requests = Json::array();
  for (int64_t left = draft.tokens; left > 0;) {
    int64_t length = draw.chance(0.5) ? 1 : draw.between(1, left);
    requests.push_back({{"start", start_of_run(draft, draw, offsets, length)}, {"length", length}});
    left -= length;
  }
  draft.set("/positions/requests", requests);
}

// Padding rows may have any position.
std::vector<int64_t> explicit_positions(const FuzzDraft& draft, Draw& draw, const Offsets& offsets,
                                        bool is_int32) {
  std::vector<int64_t> values;
  int64_t largest = is_int32 ? std::numeric_limits<int32_t>::max() : std::numeric_limits<int64_t>::max();
  bool has_rows = draft.keys.contains("table") && draft.keys["table"].contains("rows");
  for (int64_t row = 0; row < draft.tokens; ++row) {
    bool is_known = !offsets.values.empty();
    int64_t position = draw.between(0, draft.table_rows - 1 - (is_known ? 0 : offsets.high));
    if (is_known) position -= offsets.values[static_cast<size_t>(row)];
    bool is_wild = has_rows && draft.padded_rows.count(row) && draw.chance(0.5);
    values.push_back(is_wild ? draw.one_of<int64_t>({-1, draft.table_rows, largest, -largest - 1})
                             : position);
  }
  return values;
}

// Those of all axes, or those of the first.
void draw_explicit_positions(FuzzDraft& draft, Draw& draw, const Offsets& offsets, bool is_int32) {
  auto values = [&] { return explicit_positions(draft, draw, offsets, is_int32); };
  if (draft.axes == 1 || draw.chance(0.3)) return draft.set("/positions/values", values());
  Json axes = Json::array();
  for (int64_t axis = 0; axis < draft.axes; ++axis) axes.push_back(values());
  draft.set("/positions/values", axes);
  draft.keys["positions"].erase("axes");  // the lists say it
}

void draw_mrope(FuzzDraft& draft, Draw& draw) {
  if (!draw.chance(0.25)) return;
  int64_t pairs = draft.rotary_dim / 2, first = draw.between(0, pairs),
          second = draw.between(0, pairs - first);
  std::vector<int64_t> section = {first, second, pairs - first - second};
  draw.random().shuffle(section);
  draft.set("/mrope/section", section);
  if (draw.chance(0.6)) draft.set("/mrope/interleaved", draw.chance(0.8));
  draft.axes = draw.chance(0.85) ? 3 : 1;
  if (draft.axes == 1 || draw.chance(0.2)) draft.set("/positions/axes", draft.axes);
}

void draw_positions(FuzzDraft& draft, Draw& draw) {
  bool is_int32 = draw.chance(0.5);
  if (is_int32 || draw.chance(0.3)) draft.set("/positions/dtype", is_int32 ? "int32" : "int64");
  Offsets offsets = draw_offsets(draft, draw);
  std::string pattern = draw.one_of({"contiguous", "requests", "random", "explicit"});
  if (pattern == "requests" && draft.tokens > 0) {
    draw_requests(draft, draw, offsets);
  } else if (pattern == "random") {
    draft.set("/positions/pattern", pattern);
  } else if (pattern == "explicit") {
    draw_explicit_positions(draft, draw, offsets, is_int32);
  } else {
    int64_t start = start_of_run(draft, draw, offsets, draft.tokens);
    bool may_be_zero = offsets.low >= 0;
    if (!may_be_zero || draw.chance(0.7)) draft.set("/positions/start", start);
  }
}

// --- The rest

Json draw_scale(const FuzzDraft& draft, Draw& draw) {
  auto number = [&] { return draw.one_of({0.25, 0.5, 1.0, 2.0, 0.1, 0.3, 3.0, 0.142857, -2.0}); };
  if (draw.chance(0.4)) return draw.chance(0.02) ? 0.0 : number();
  Json list = Json::array();
  int64_t count = draw.chance(0.3) ? 1 : draft.kv_heads;
  for (int64_t i = 0; i < count; ++i) list.push_back(number());
  return list;
}

void draw_norm(FuzzDraft& draft, Draw& draw) {
  if (!draw.chance(0.25)) return;
  bool has_q = draw.chance(0.7);
  draft.set("/norm/q", has_q);
  draft.set("/norm/k", !has_q || draw.chance(0.7));
  if (draw.chance(0.4)) draft.set("/norm/eps", draw.one_of({1e-5, 1e-12, 0.25}));
  if (draw.chance(0.4)) draft.set("/norm/plus_one", draw.chance(0.7));
  if (draw.chance(0.4)) draft.set("/norm/weight_dtype", draw.one_of({"auto", "fp32"}));
}

void draw_fp8_queries(FuzzDraft& draft, Draw& draw) {
  if (draw.chance(0.1)) draft.set("/q_out_dtype", "auto");
  if (!draw.chance(0.2)) return;
  draft.set("/q_out_dtype", draw.one_of({"fp8_e4m3", "fp8_e5m2"}));
  if (draft.keys.contains("outputs")) draft.set("/outputs/q_out", true);  // it must be given
  if (draw.chance(0.7)) draft.set("/scales/q", draw_scale(draft, draw));
}

void draw_options(FuzzDraft& draft, Draw& draw) {
  if (draw.chance(0.5)) draft.set("/style", draw.one_of({"neox", "gptj"}));
  for (const char* scale : {"/scales/k", "/scales/v"}) {
    if (draw.chance(0.3)) draft.set(scale, draw_scale(draft, draw));
  }
  if (draw.chance(0.2)) draft.set("/apply_scale", draw.chance(0.5));
  if (draw.chance(0.2)) draft.set("/match_unfused", draw.chance(0.8));
  draw_norm(draft, draw);
  bool is_in_place = draw.chance(0.2);
  if (is_in_place || draw.chance(0.1)) draft.set("/inputs/in_place", is_in_place);
  if (draw.chance(0.5)) {
    std::string strides = draw.one_of({"contiguous", "fused_qkv", "odd_offset", "transposed"});
    bool fits = strides != "transposed" || !is_in_place;  // a transposed q is no view as (T, QH * D)
    draft.set("/inputs/strides", fits ? strides : "contiguous");
  }
  if (draw.chance(0.5))
    draft.set("/inputs/values", draw.one_of({"normal", "ramp", "extremes", "nan_padding"}));
  if (draw.chance(0.3)) draft.set("/outputs/q_out", draw.chance(0.5));
  if (draw.chance(0.3)) draft.set("/outputs/k_out", draw.chance(0.5));
  if (draw.chance(0.3)) {
    draft.set("/outputs/zeros_out", draw.one_of({Json(true), Json(false), Json("allocated")}));
  }
  draw_fp8_queries(draft, draw);
  if (draw.chance(0.7)) draft.set("/tolerance/ulps", 0.5);
  if (draw.chance(0.1)) draft.set("/tolerance/relative", 4e-6);
  if (draw.chance(0.05)) draft.set("/tags", Json::array({"fuzz"}));
  if (draw.chance(0.03)) {
    draft.set("/model",
              {{"name", "none"}, {"tensor_parallel", draw.between(1, 8)}, {"config", {{"made", "up"}}}});
  }
  draft.set("/seed", draw.between(0, 999'999));
}

}  // namespace

FuzzDraft draw_valid_case(Draw& draw, int64_t most_tokens) {
  FuzzDraft draft;
  draw_heads(draft, draw);
  draw_rows(draft, draw, most_tokens);
  draw_dtypes(draft, draw);
  draw_layout(draft, draw);
  draw_table(draft, draw);
  draw_slots(draft, draw);
  draw_mrope(draft, draw);
  draw_positions(draft, draw);
  draw_options(draft, draw);
  if (draw.chance(0.15)) draw_tensor_strides(draft, draw);
  return draft;
}

}  // namespace kvrope::regress
