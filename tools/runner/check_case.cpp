#include "runner/check_case.h"

#include "runner/json_document.h"
#include "runner/parse_strides.h"

namespace kvrope::regress {
namespace {

class Checker {
 public:
  explicit Checker(const CaseSpec& spec) : spec_(spec) {}

  void require(bool holds, const std::string& key, const std::string& complaint) const {
    if (!holds) throw FileError(spec_.pointer + "/" + key, complaint);
  }

  // A key that only one pattern reads is given if and only if that pattern is chosen, or merely if
  // (`is_optional`).
  void belongs(bool given, bool chosen, const std::string& key, const std::string& pattern,
               bool is_optional) const {
    require(!given || chosen, key, "belongs to pattern \"" + pattern + "\", which is not this one's");
    require(given || !chosen || is_optional, key, "is missing, and pattern \"" + pattern + "\" needs it");
  }

 private:
  const CaseSpec& spec_;
};

void check_positions(const CaseSpec& spec, const Checker& checker) {
  using Pattern = PositionsSpec::Pattern;
  const PositionsSpec& positions = spec.positions;
  Pattern pattern = positions.chosen();
  checker.belongs(positions.start.has_value(), pattern == Pattern::contiguous, "positions/start",
                  "contiguous", true);
  checker.belongs(positions.requests.has_value(), pattern == Pattern::requests, "positions/requests",
                  "requests", false);
  checker.belongs(positions.values.has_value(), pattern == Pattern::explicit_values, "positions/values",
                  "explicit", false);
  bool has_axes = positions.values && positions.values->size() > 1;
  checker.require(!has_axes || !positions.axes, "positions/axes", "is what the lists in values say");
  if (positions.requests) {
    int64_t total = 0;
    for (const Request& request : *positions.requests) total += request.length;
    checker.require(total == spec.tokens(), "positions/requests",
                    "must have lengths that sum to num_tokens = " + std::to_string(spec.tokens()) + ", got " +
                        std::to_string(total));
  }
  if (positions.offsets) {
    using Offsets = OffsetsSpec::Pattern;
    const OffsetsSpec& offsets = *positions.offsets;
    Offsets chosen = offsets.chosen();
    checker.belongs(offsets.value.has_value(), chosen == Offsets::constant, "positions/offsets/value",
                    "constant", true);
    checker.belongs(offsets.limit.has_value(), chosen == Offsets::random, "positions/offsets/limit", "random",
                    true);
    checker.belongs(offsets.values.has_value(), chosen == Offsets::explicit_values,
                    "positions/offsets/values", "explicit", false);
  }
}

void check_slots(const CaseSpec& spec, const Checker& checker) {
  using Pattern = SlotsSpec::Pattern;
  const SlotsSpec& slots = spec.slots;
  Pattern pattern = slots.chosen();
  checker.belongs(slots.start.has_value(), pattern == Pattern::sequential, "slots/start", "sequential", true);
  checker.belongs(slots.values.has_value(), pattern == Pattern::explicit_values, "slots/values", "explicit",
                  false);
  int64_t length = spec.slots_length();
  if (slots.values) {
    auto given = static_cast<int64_t>(slots.values->size());
    checker.require(
        given == length, "slots/values",
        "must have num_slots = " + std::to_string(length) + " values, got " + std::to_string(given));
  }
  if (const auto* rows = std::get_if<std::vector<int64_t>>(&slots.padding)) {
    for (int64_t row : *rows) {
      checker.require(
          row < length, "slots/padding",
          "must name rows below num_slots = " + std::to_string(length) + ", got " + std::to_string(row));
    }
  }
  if (slots.swa && slots.swa->values) {
    checker.require(!slots.swa->window && !slots.swa->evicted, "slots/swa/values",
                    "is the whole table: window and evicted do not go with it");
  }
}

void check_longrope(const CaseSpec& spec, const Checker& checker) {
  const RopeScaling& scaling = spec.table.scaling;
  checker.require(scaling.factor || scaling.max_position_embeddings, "table/scaling/factor",
                  "is missing, and longrope needs it or max_position_embeddings");
  checker.require(*scaling.original_max_position_embeddings > 1,
                  "table/scaling/original_max_position_embeddings", "must be above 1 for longrope");
  int64_t pairs = spec.rotated_dims() / 2;
  auto check_length = [&](const std::vector<double>& factors, const std::string& key) {
    auto given = static_cast<int64_t>(factors.size());
    checker.require(
        given == pairs, "table/scaling/" + key,
        "must have rotary_dim / 2 = " + std::to_string(pairs) + " numbers, got " + std::to_string(given));
  };
  check_length(scaling.short_factor, "short_factor");
  check_length(scaling.long_factor, "long_factor");
}

void check_scaling(const CaseSpec& spec, const Checker& checker) {
  const RopeScaling& scaling = spec.table.scaling;
  using Type = RopeScaling::Type;
  bool needs_original =
      scaling.type != Type::none && scaling.type != Type::linear && scaling.type != Type::proportional;
  checker.require(!needs_original || scaling.original_max_position_embeddings,
                  "table/scaling/original_max_position_embeddings",
                  "is missing, and this rope_type needs it");
  bool is_ordered = scaling.high_freq_factor >= scaling.low_freq_factor;
  checker.require(scaling.type != Type::llama3 || is_ordered, "table/scaling/high_freq_factor",
                  "must not be below low_freq_factor");
  if (scaling.type == Type::longrope) check_longrope(spec, checker);
}

}  // namespace

void check_keys_together(const CaseSpec& spec) {
  Checker checker(spec);
  check_positions(spec, checker);
  check_slots(spec, checker);
  check_scaling(spec, checker);
  checker.require(!spec.misuse || spec.expected_error, "misuse", "is an error, and the case expects none");
  checker.require(!spec.model || !spec.model->name.empty(), "model/name",
                  "must be a non-empty string, is missing");
  checker.require(!spec.q_out_dtype || spec.outputs.q_out, "q_out_dtype",
                  "is that of a q_out that is given, and outputs/q_out says that none is");
  check_strides(spec);
}

}  // namespace kvrope::regress
