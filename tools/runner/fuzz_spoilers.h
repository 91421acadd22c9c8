// What the ways to make a case invalid share, and those that concern norms, mRoPE and fp8 queries.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "runner/fuzz_case.h"

namespace kvrope::regress {

// A way to spoil a case gives the pattern of the error, or nothing where it does not apply to the case.
using Pattern = std::optional<std::string>;
using Spoiler = Pattern (*)(FuzzDraft&, Draw&);

constexpr int64_t kMostInt64 = std::numeric_limits<int64_t>::max();

inline std::string names(const std::string& argument) {
  return ": " + argument + ": ";
}

// "slot_mapping[3] is 64" from the CPU, of positions of several axes "pos[:, 3] is 64", and "slot_mapping
// gives 64 for row 3" from CUDA.
std::string value_of(const std::string& argument);

inline void erase(FuzzDraft& draft, const std::string& key) {
  draft.keys.erase(key);
}

// All rows of q are cached, in the first slots, as nothing else is said.
void cache_all_rows_plainly(FuzzDraft& draft);
// Positions 0, 1, ... in a table of one row more.
void number_rows_plainly(FuzzDraft& draft);
void pin_rotated_dims(FuzzDraft& draft);
void give_fp8_queries(FuzzDraft& draft, Draw& draw);

std::vector<int64_t> counted(int64_t count);  // 0, 1, ...

// Patterns that name the argument at fault.
Pattern axis_out_of_range(FuzzDraft& draft, Draw& draw);
Pattern infinite_eps(FuzzDraft& draft, Draw& draw);
Pattern one_plus_no_weight(FuzzDraft& draft, Draw& draw);
Pattern bad_section(FuzzDraft& draft, Draw& draw);
Pattern axes_that_no_section_has(FuzzDraft& draft, Draw& draw);
Pattern interleaved_without_section(FuzzDraft& draft, Draw& draw);
Pattern q_scale_of_no_fp8(FuzzDraft& draft, Draw& draw);

}  // namespace kvrope::regress
