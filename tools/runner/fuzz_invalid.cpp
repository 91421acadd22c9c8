// Ways in which a case can be invalid. Each pins the keys that make it so and gives the text that its error
// must have: the name of the argument as the operation's messages have it.
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "runner/fuzz_spoilers.h"

namespace kvrope::regress {
namespace {

void without_fp8_queries(FuzzDraft& draft) {
  draft.pin("/q_out_dtype", "auto");
  if (draft.keys.contains("scales")) draft.keys["scales"].erase("q");
}

int64_t other_count(int64_t count, Draw& draw) {
  return count > 0 && draw.chance(0.5) ? draw.between(0, count - 1) : count + draw.between(1, 3);
}

// --- Shapes

Pattern heads_that_do_not_divide(FuzzDraft& draft, Draw& draw) {
  int64_t kv_heads = std::max<int64_t>(2, draft.kv_heads);
  draft.pin("/kv_heads", kv_heads);
  draft.pin("/q_heads", kv_heads * draw.between(0, 3) + draw.between(1, kv_heads - 1));
  return names("k");
}

Pattern odd_head_size(FuzzDraft& draft, Draw&) {
  draft.pin("/head_dim", draft.head_dim - 1);
  return names("q");
}

Pattern large_head_size(FuzzDraft& draft, Draw& draw) {
  draft.pin("/head_dim", 512 + 2 * draw.between(1, 40));
  for (const char* key : {"/q_heads", "/kv_heads"}) draft.set(key, 1);
  return names("q");
}

Pattern large_value_head_size(FuzzDraft& draft, Draw& draw) {
  draft.pin("/v_head_dim", 512 + draw.between(1, 80));
  return names("v");
}

Pattern bad_rotary_dim(FuzzDraft& draft, Draw& draw) {
  draft.pin("/head_dim", draft.head_dim);
  int64_t odd = 2 * draw.between(1, draft.head_dim / 2) - 1;
  draft.pin("/rotary_dim", draw.chance(0.5) ? odd : draft.head_dim + 2 * draw.between(1, 10));
  return names("rotary_dim");
}

Pattern bad_rotary_offset(FuzzDraft& draft, Draw& draw) {
  pin_rotated_dims(draft);
  draft.pin("/rotary_dim_offset", draft.head_dim - draft.rotary_dim + draw.between(1, 9));
  return names("rotary_dim_offset");
}

Pattern bad_table_width(FuzzDraft& draft, Draw& draw) {
  int64_t width = draw.between(0, 3 * draft.rotary_dim);
  if (width == draft.rotary_dim || width == 2 * draft.rotary_dim) return std::nullopt;
  pin_rotated_dims(draft);
  draft.pin("/table/width", width);
  return names("cos_sin");
}

Pattern fewer_kv_rows(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  draft.pin("/num_tokens", draft.tokens);
  draft.pin("/num_kv_rows", draw.between(0, draft.tokens - 1));
  return names("k");
}

Pattern more_slots_than_rows(FuzzDraft& draft, Draw& draw) {
  cache_all_rows_plainly(draft);
  draft.pin("/num_kv_rows", draft.kv_rows);
  draft.pin("/num_slots", draft.kv_rows + draw.between(1, 3));
  return names("slot_mapping");
}

Pattern number_of_positions(FuzzDraft& draft, Draw& draw) {
  erase(draft, "positions");
  draft.pin("/num_tokens", draft.tokens);
  draft.pin("/positions/values", counted(other_count(draft.tokens, draw)));
  return names("pos");
}

Pattern number_of_offsets(FuzzDraft& draft, Draw& draw) {
  erase(draft, "positions");
  draft.pin("/num_tokens", draft.tokens);
  draft.pin("/positions/offsets/values", counted(other_count(draft.tokens, draw)));
  return names("offs");
}

// --- Caches

Pattern bad_split(FuzzDraft& draft, Draw& draw) {
  draft.pin("/layout", draw.one_of({"x_split", "x_split_shuffle"}));
  draft.pin("/head_dim", draft.head_dim);
  int64_t x = draw.one_of<int64_t>({3, 5, 6, 7, 12});
  draft.pin("/x", draw.chance(0.5) ? x : 2 * draft.head_dim);
  return names("key_cache");
}

Pattern block_size_that_x_does_not_divide(FuzzDraft& draft, Draw& draw) {
  for (const char* key : {"slots", "num_blocks", "num_slots"}) erase(draft, key);
  draft.pin("/layout", "x_split_shuffle");
  draft.pin("/head_dim", draft.head_dim);
  draft.pin("/x", 2);
  draft.pin("/block_size", 2 * draw.between(0, 12) + 1);
  return names("value_cache");
}

Pattern scales_of_other_heads(FuzzDraft& draft, Draw& draw) {
  std::string which = draw.one_of({"k", "v", "q"});
  if (which == "q") give_fp8_queries(draft, draw);
  draft.pin("/kv_heads", draft.kv_heads);
  int64_t count = draw.chance(0.3) ? 0 : draft.kv_heads + draw.between(1, 2);
  draft.pin("/scales/" + which, std::vector<double>(static_cast<size_t>(count), 0.5));
  draft.pin("/apply_scale", true);  // a scale that is ignored may have any form
  return names(which + "_scale");
}

Pattern q_out_that_is_no_view(FuzzDraft& draft, Draw&) {
  if (draft.tokens < 2 || draft.q_heads < 2) return std::nullopt;
  without_fp8_queries(draft);  // an fp8 q_out is never q
  draft.pin("/num_tokens", draft.tokens);
  draft.pin("/q_heads", draft.q_heads);
  draft.pin("/inputs/strides", "transposed");
  draft.pin("/inputs/in_place", true);
  return names("q_out");
}

// --- Values

// Plain rows in a cache just large enough for them; returns its slots.
int64_t cache_in_few_blocks(FuzzDraft& draft) {
  cache_all_rows_plainly(draft);
  erase(draft, "positions");
  int64_t blocks = draft.tokens / draft.block_size + 1;
  draft.pin("/num_blocks", blocks);
  draft.pin("/block_size", draft.block_size);
  return blocks * draft.block_size;
}

Pattern slot_out_of_range(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  int64_t capacity = cache_in_few_blocks(draft);
  if (draw.chance(0.2)) {
    draft.pin("/slots/start", capacity - draw.between(0, draft.tokens - 1));
    return value_of("slot_mapping");
  }
  std::vector<int64_t> slots = counted(draft.tokens);
  int64_t bad = draw.one_of<int64_t>({capacity, capacity + 1, int64_t{1} << 31, kMostInt64});
  slots[static_cast<size_t>(draw.between(0, draft.tokens - 1))] = bad;
  draft.pin("/slots/values", slots);
  return value_of("slot_mapping");
}

Pattern window_out_of_range(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  int64_t capacity = cache_in_few_blocks(draft);
  std::vector<int64_t> slots = counted(draft.tokens), table = counted(draft.tokens);
  auto row = static_cast<size_t>(draw.between(0, draft.tokens - 1));
  bool is_beyond_table = draw.chance(0.5);
  if (is_beyond_table) {
    slots[row] = draft.tokens + draw.between(0, 2);
  } else {
    table[row] = capacity + draw.between(0, 2);
  }
  draft.pin("/slots/values", slots);
  draft.pin("/slots/swa/values", table);
  return value_of(is_beyond_table ? "slot_mapping" : "swa_slot_mapping");
}

Pattern position_out_of_range(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  cache_all_rows_plainly(draft);
  number_rows_plainly(draft);
  std::vector<int64_t> positions = counted(draft.tokens);
  auto row = static_cast<size_t>(draw.between(0, draft.tokens - 1));
  std::vector<int64_t> offsets(positions.size(), 0);
  if (draw.chance(0.4)) {  // the sum is what counts; it may overflow
    bool overflows = draw.chance(0.3);
    positions[row] = overflows ? kMostInt64 : positions[row];
    offsets[row] =
        overflows ? 1 : draw.one_of<int64_t>({-draft.table_rows, draft.table_rows, kMostInt64 / 2});
    draft.pin("/positions/offsets/values", offsets);
  } else {
    positions[row] =
        draw.one_of<int64_t>({-1, draft.table_rows, int64_t{1} << 31, kMostInt64, -kMostInt64 - 1});
  }
  draft.pin("/positions/values", positions);
  return value_of("pos");
}

// --- Mistakes of the caller

// Sees to it that the call is given this tensor, which may be one that is left out otherwise.
void give(FuzzDraft& draft, const std::string& tensor) {
  if (tensor.ends_with("_out")) {
    draft.pin("/inputs/in_place", false);
    draft.pin("/outputs/" + tensor, true);
  }
  if (tensor.ends_with("_scale")) {
    draft.pin("/scales/" + tensor.substr(0, 1), 0.5);
    draft.pin("/apply_scale", true);  // or it would be ignored
    if (tensor == "q_scale") {
      draft.pin("/q_out_dtype", "fp8_e4m3");
      draft.pin("/outputs/q_out", true);
    }
  }
  if (tensor.ends_with("_weight")) draft.pin("/norm/" + tensor.substr(0, 1), true);
  if (tensor == "offs") draft.pin("/positions/offsets/value", 0);
  if (tensor == "swa_slot_mapping") draft.pin("/slots/swa/window", 1000);
}

std::string some_tensor(Draw& draw) {
  return draw.one_of({"q", "k", "v", "key_cache", "value_cache", "slot_mapping", "swa_slot_mapping", "pos",
                      "offs", "cos_sin", "k_scale", "v_scale", "q_scale", "q_weight", "k_weight", "q_out",
                      "k_out", "zeros_out"});
}

std::string some_written_tensor(Draw& draw) {
  return draw.one_of({"q_out", "k_out", "zeros_out", "key_cache", "value_cache"});
}

Pattern shared_memory(FuzzDraft& draft, Draw& draw) {
  std::string tensor = some_written_tensor(draw), other = some_tensor(draw);
  bool may_be_same =
      (tensor == "q_out" && other == "q" && !draft.has_fp8_queries()) || (tensor == "k_out" && other == "k");
  if (tensor == other || may_be_same) return std::nullopt;
  give(draft, tensor);
  give(draft, other);
  if (tensor == "q_out" && other == "q") draft.pin("/q_out_dtype", Json(draft.keys["q_out_dtype"]));
  draft.pin("/misuse/tensor", tensor);
  draft.pin("/misuse/fault", "shared");
  draft.pin("/misuse/with", other);
  return ": (" + tensor + "|" + other + "): expected memory of its own";
}

Pattern misused_tensor(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  cache_all_rows_plainly(draft);
  erase(draft, "positions");
  std::string fault = draw.one_of({"dtype", "rank", "rows", "device", "missing", "self_overlap", "shared"});
  if (fault == "shared") return shared_memory(draft, draw);
  std::string tensor = some_tensor(draw);
  if (fault == "self_overlap") tensor = some_written_tensor(draw);
  if (fault == "rows")  // of others the size is free, or it is told by another
    tensor = draw.one_of(
        {"v", "pos", "offs", "value_cache", "q_weight", "k_weight", "q_out", "k_out", "zeros_out"});
  give(draft, tensor);
  draft.pin("/misuse/tensor", tensor);
  draft.pin("/misuse/fault", fault);
  // The first tensor says where the others should be.
  return tensor == "q" && fault == "device" ? names("k") : names(tensor);
}

Pattern heads_on_one_another(FuzzDraft& draft, Draw&) {
  if (draft.kv_rows == 0 || draft.kv_heads < 2) return std::nullopt;
  draft.pin("/num_tokens", draft.tokens);
  draft.pin("/num_kv_rows", draft.kv_rows);
  draft.pin("/kv_heads", draft.kv_heads);
  give(draft, "k_out");
  draft.set("/inputs/strides", Json::object());
  draft.pin("/inputs/strides/k_out/strides", {draft.head_dim, 0, 1});
  return names("k_out");
}

constexpr Spoiler kSpoilers[] = {heads_that_do_not_divide,
                                 odd_head_size,
                                 large_head_size,
                                 large_value_head_size,
                                 bad_rotary_dim,
                                 bad_rotary_offset,
                                 bad_table_width,
                                 fewer_kv_rows,
                                 more_slots_than_rows,
                                 number_of_positions,
                                 number_of_offsets,
                                 bad_split,
                                 block_size_that_x_does_not_divide,
                                 scales_of_other_heads,
                                 q_out_that_is_no_view,
                                 slot_out_of_range,
                                 window_out_of_range,
                                 position_out_of_range,
                                 axis_out_of_range,
                                 infinite_eps,
                                 one_plus_no_weight,
                                 bad_section,
                                 axes_that_no_section_has,
                                 interleaved_without_section,
                                 q_scale_of_no_fp8,
                                 heads_on_one_another,
                                 misused_tensor,
                                 misused_tensor,
                                 misused_tensor};

}  // namespace

void spoil_case(FuzzDraft& draft, Draw& draw) {
  constexpr auto kCount = static_cast<int64_t>(std::size(kSpoilers));
  // Strides of single tensors fit the valid case's sizes.
  if (draft.keys.contains("inputs") && draft.keys["inputs"].contains("strides") &&
      draft.keys["inputs"]["strides"].is_object()) {
    draft.keys["inputs"].erase("strides");
  }
  for (;;) {
    FuzzDraft spoiled = draft;
    Pattern pattern = kSpoilers[draw.between(0, kCount - 1)](spoiled, draw);
    if (!pattern) continue;
    spoiled.pin("/expect/error", *pattern);
    draft = std::move(spoiled);
    return;
  }
}

}  // namespace kvrope::regress
