// The keys of a case: reading them from JSON, each by itself.
#pragma once

#include <string>

#include "runner/case_spec.h"
#include "runner/json_document.h"

namespace kvrope::regress {

// Sets what `keys` names in `spec` and leaves the rest, so that applying defaults, case and sweep values one
// after the other gives their precedence. Inside an object the same holds key by key, but naming a pattern
// (or giving requests or values, which names one too) drops what belonged to the earlier one. Throws
// FileError with pointers below `pointer`. `is_case` allows the keys `id` and `sweep`; the sweep is not read
// here.
void apply_keys(CaseSpec& spec, const Json& keys, const std::string& pointer, bool is_case = false);

}  // namespace kvrope::regress
