#include "runner/fuzz_spoilers.h"

namespace kvrope::regress {

std::string value_of(const std::string& argument) {
  return "\\b" + argument + "(\\[(:, )?\\d+\\]( \\+ offs)? is| gives) -?\\d+\\b";
}

void cache_all_rows_plainly(FuzzDraft& draft) {
  for (const char* key : {"slots", "num_slots", "num_blocks"}) erase(draft, key);
  draft.pin("/num_tokens", draft.tokens);
}

void number_rows_plainly(FuzzDraft& draft) {
  erase(draft, "positions");
  draft.table_rows = draft.tokens + 1;
  draft.pin("/table/rows", draft.table_rows);
}

std::vector<int64_t> counted(int64_t count) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(i);
  return values;
}

void pin_rotated_dims(FuzzDraft& draft) {
  draft.pin("/head_dim", draft.head_dim);
  draft.pin("/rotary_dim", draft.rotary_dim);
}

void give_fp8_queries(FuzzDraft& draft, Draw& draw) {
  draft.pin("/q_out_dtype", draw.one_of({"fp8_e4m3", "fp8_e5m2"}));
  draft.pin("/outputs/q_out", true);
}

// --- Norms

Pattern infinite_eps(FuzzDraft& draft, Draw& draw) {
  draft.pin(draw.chance(0.5) ? "/norm/q" : "/norm/k", true);
  draft.pin("/norm/eps", draw.one_of({1e39, 1e300}));  // no fp32
  return names("eps");
}

Pattern one_plus_no_weight(FuzzDraft& draft, Draw&) {
  draft.pin("/norm/q", false);
  draft.pin("/norm/k", false);
  draft.pin("/norm/plus_one", true);
  return names("weight_plus_one");
}

// --- mRoPE

// Three sizes with another sum, or others than three with the right one.
Pattern bad_section(FuzzDraft& draft, Draw& draw) {
  erase(draft, "positions");
  pin_rotated_dims(draft);
  int64_t pairs = draft.rotary_dim / 2;
  switch (draw.between(0, 3)) {
    case 0:
      draft.pin("/mrope/section", {draw.between(0, pairs), pairs, draw.between(1, 3)});
      break;
    case 1:
      draft.pin("/mrope/section", {0, pairs - 1, 0});
      break;
    case 2:
      draft.pin("/mrope/section", {pairs - 1, 1});
      break;
    default:
      draft.pin("/mrope/section", {0, 0, pairs - 1, 1});
  }
  if (draw.chance(0.3)) draft.pin("/positions/axes", 1);  // which makes it no better
  return names("mrope_section");
}

Pattern axes_that_no_section_has(FuzzDraft& draft, Draw& draw) {
  erase(draft, "positions");
  bool has_section = draft.keys.contains("mrope");
  if (has_section) {
    pin_rotated_dims(draft);
    draft.pin("/mrope/section", Json(draft.keys["mrope"]["section"]));
  }
  draft.pin("/positions/axes", has_section ? draw.one_of({2, 4, 5}) : draw.one_of({2, 3, 4}));
  return names("pos");
}

Pattern interleaved_without_section(FuzzDraft& draft, Draw&) {
  erase(draft, "positions");
  erase(draft, "mrope");
  draft.pin("/mrope/interleaved", true);
  return names("mrope_interleaved");
}

// All axes but one are in the table.
Pattern axis_out_of_range(FuzzDraft& draft, Draw& draw) {
  if (draft.tokens == 0) return std::nullopt;
  cache_all_rows_plainly(draft);
  number_rows_plainly(draft);
  pin_rotated_dims(draft);
  draft.pin("/mrope/section", {draft.rotary_dim / 2, 0, 0});  // even where no frequency takes that axis
  std::vector<std::vector<int64_t>> axes(3, counted(draft.tokens));
  auto axis = static_cast<size_t>(draw.between(0, 2)),
       row = static_cast<size_t>(draw.between(0, draft.tokens - 1));
  axes[axis][row] = draw.one_of<int64_t>({-1, draft.table_rows, kMostInt64});
  draft.pin("/positions/values", axes);
  return value_of("pos");
}

// --- fp8 queries

Pattern q_scale_of_no_fp8(FuzzDraft& draft, Draw& draw) {
  draft.pin("/q_out_dtype", "auto");
  draft.pin("/scales/q", draw.one_of({0.5, 2.0}));
  return names("q_scale");
}

}  // namespace kvrope::regress
