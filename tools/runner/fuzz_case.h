// Random cases, valid and invalid, as the keys that a case file holds: what is found can be pasted into one.
// A case depends on the seed and on its number alone.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "runner/json_document.h"
#include "runner/random.h"

namespace kvrope::regress {

struct FuzzCase {
  Json keys;
  // JSON pointers of the keys that make the case invalid: without one of them the call might be right, so
  // that shrinking must leave them.
  std::set<std::string> pinned;
};

FuzzCase make_fuzz_case(int64_t seed, int64_t number, int64_t most_tokens);

// A file with this case alone.
std::string file_with_case(const Json& keys);

// What a drawn case consists of, for the steps that draw it.
struct FuzzDraft {
  Json keys = Json::object();
  std::set<std::string> pinned;
  int64_t tokens = 0, kv_rows = 0, slots = 0;  // T, Tk, T_slot
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  int64_t rotary_dim = 0, rotary_dim_offset = 0;
  int64_t block_size = 16;
  int64_t table_rows = 0;         // P
  int64_t axes = 1;               // of positions
  std::set<int64_t> padded_rows;  // that are padding whatever the seed

  void set(const std::string& pointer, Json value) { keys[Json::json_pointer(pointer)] = std::move(value); }
  bool has_fp8_queries() const { return keys.value("q_out_dtype", "auto") != "auto"; }
  // Sets a key that the case is invalid by.
  void pin(const std::string& pointer, Json value);
};

class Draw {
 public:
  explicit Draw(Random random) : random_(random) {}

  bool chance(double probability) { return random_.uniform() < probability; }
  int64_t between(int64_t low, int64_t high) { return low + random_.below(high - low + 1); }
  template <class Value>
  Value one_of(std::initializer_list<Value> values) {
    return values.begin()[random_.below(static_cast<int64_t>(values.size()))];
  }
  Random& random() { return random_; }

 private:
  Random random_;
};

// A valid case of up to so many tokens.
FuzzDraft draw_valid_case(Draw& draw, int64_t most_tokens);

// Gives some tensors of a drawn case strides and offsets of their own. Comes last: it depends on which there
// are.
void draw_tensor_strides(FuzzDraft& draft, Draw& draw);

// Makes a valid case invalid in one way, and says in its expectation what the error names.
void spoil_case(FuzzDraft& draft, Draw& draw);

}  // namespace kvrope::regress
