// Strides and offsets of single tensors, in any order of their dimensions and with gaps.
#include <algorithm>
#include <numeric>
#include <vector>

#include "runner/fuzz_case.h"

namespace kvrope::regress {
namespace {

using Sizes = std::vector<int64_t>;

// The dimensions from the outermost to the innermost.
Sizes strides_in_order(const Sizes& sizes, const std::vector<size_t>& order, Draw& draw) {
  Sizes strides(sizes.size());
  int64_t stride = draw.chance(0.8) ? 1 : draw.between(2, 3);
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride = stride * std::max<int64_t>(sizes[order[i]], 1) + (draw.chance(0.2) ? draw.between(1, 9) : 0);
  }
  return strides;
}

std::vector<size_t> natural_order(size_t rank) {
  std::vector<size_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// The first `fixed` dimensions stay outermost.
Sizes any_strides(const Sizes& sizes, Draw& draw, size_t fixed = 0) {
  std::vector<size_t> order = natural_order(sizes.size());
  if (draw.chance(0.5)) {
    std::vector<size_t> rest(order.begin() + static_cast<int64_t>(fixed), order.end());
    draw.random().shuffle(rest);
    std::copy(rest.begin(), rest.end(), order.begin() + static_cast<int64_t>(fixed));
  }
  return strides_in_order(sizes, order, draw);
}

// Those of a q_out: its heads lie one after the other, so that it can be viewed as (T, QH * D).
Sizes viewable_strides(const Sizes& sizes, Draw& draw) {
  int64_t dim = draw.chance(0.8) ? 1 : 2, head = sizes[2] * dim;
  return {sizes[1] * head + draw.between(0, 9), head, dim};
}

bool option(const FuzzDraft& draft, const char* object, const char* key, bool by_default) {
  if (!draft.keys.contains(object)) return by_default;
  return draft.keys[object].value(key, by_default);
}

class StridesDraw {
 public:
  StridesDraw(FuzzDraft& draft, Draw& draw) : draft_(draft), draw_(draw) {}

  void rows() {
    bool is_in_place = option(draft_, "inputs", "in_place", false);
    bool q_is_in_place = is_in_place && !draft_.has_fp8_queries();
    Sizes q = {draft_.tokens, draft_.q_heads, draft_.head_dim},
          k = {draft_.kv_rows, draft_.kv_heads, draft_.head_dim};
    give("q", q_is_in_place ? viewable_strides(q, draw_) : any_strides(q, draw_));
    give("k", any_strides(k, draw_));
    give("v", any_strides({draft_.kv_rows, draft_.kv_heads, draft_.value_dim}, draw_));
    if (!q_is_in_place && option(draft_, "outputs", "q_out", true)) give("q_out", viewable_strides(q, draw_));
    if (!is_in_place && option(draft_, "outputs", "k_out", true)) give("k_out", any_strides(k, draw_));
    bool has_zeros =
        draft_.keys.contains("outputs") && draft_.keys["outputs"].value("zeros_out", Json()) == true;
    if (has_zeros) give("zeros_out", any_strides(q, draw_));
  }

  void table_and_indices() {
    int64_t width = 2 * draft_.rotary_dim;  // room for either
    give("cos_sin", any_strides({draft_.table_rows, width}, draw_));
    give("pos", any_strides(draft_.axes == 1 ? Sizes{1} : Sizes{draft_.axes, draft_.tokens}, draw_));
    give("slot_mapping", any_strides({1}, draw_));
    if (draft_.keys.contains("positions") && draft_.keys["positions"].contains("offsets")) {
      give("offs", any_strides({1}, draw_));
    }
    if (draft_.keys.contains("slots") && draft_.keys["slots"].contains("swa")) {
      give("swa_slot_mapping", any_strides({1}, draw_));
    }
    if (!draft_.keys.contains("norm")) return;
    for (const char* part : {"q", "k"}) {
      if (draft_.keys["norm"].value(part, true)) give(std::string(part) + "_weight", any_strides({1}, draw_));
    }
  }

  // How many blocks there are is left open: they are outermost.
  void caches() {
    std::string layout = draft_.keys.at("layout");
    int64_t heads = draft_.kv_heads, slots = draft_.block_size, key = draft_.head_dim,
            value = draft_.value_dim;
    if (layout.starts_with("x_split")) {
      int64_t x = draft_.keys.at("x");
      give("key_cache", any_strides({1, heads, key / x, slots, x}, draw_, 1));
      bool is_shuffled = layout == "x_split_shuffle";
      give("value_cache", is_shuffled ? any_strides({1, heads, slots / x, value, x}, draw_, 1)
                                      : any_strides({1, heads, value, slots}, draw_, 1));
    } else {
      give("key_cache", any_strides({1, slots, heads, key}, draw_, 1));
      give("value_cache", any_strides({1, slots, heads, value}, draw_, 1));
    }
  }

 private:
  void give(const std::string& tensor, const Sizes& strides) {
    if (draw_.chance(0.5)) return;
    std::string pointer = "/inputs/strides/" + tensor;
    bool has_strides = draw_.chance(0.8);
    if (has_strides) draft_.set(pointer + "/strides", strides);
    if (!has_strides || draw_.chance(0.5)) draft_.set(pointer + "/offset", draw_.between(0, 20));
  }

  FuzzDraft& draft_;
  Draw& draw_;
};

}  // namespace

void draw_tensor_strides(FuzzDraft& draft, Draw& draw) {
  draft.set("/inputs/strides", Json::object());
  StridesDraw strides(draft, draw);
  strides.rows();
  strides.table_and_indices();
  strides.caches();
}

}  // namespace kvrope::regress
