// The integers of a call, worked out from the patterns of a case: positions, slots, window table, and the
// sizes that depend on them. They are the same for every device.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

struct RowPlan {
  std::vector<std::vector<int64_t>> pos;  // of each axis; one where pos is (T,)
  std::optional<std::vector<int64_t>> offs;
  std::vector<int64_t> slot_mapping;
  std::optional<std::vector<int64_t>> swa_slot_mapping;
  int64_t num_blocks = 0;  // of the caches
  int64_t table_rows = 0;  // P
  // Stands in memory beside the slots: a slot that no row addresses, so that a stray read shows; -1 if all
  // are taken.
  int64_t unused_slot = -1;
};

// Throws FileError where the caches are too small for what the pattern asks, or a value does not fit its
// dtype.
RowPlan plan_rows(const CaseSpec& spec);

// Where the row of a slot mapping entry goes.
struct Destination {
  enum class Kind { slot, padding, out_of_range };
  Kind kind;
  int64_t slot = -1;  // in the caches
};
Destination destination(const RowPlan& plan, int64_t capacity, int64_t row);

}  // namespace kvrope::regress
