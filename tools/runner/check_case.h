// The checks of a case that need several of its keys.
#pragma once

#include "runner/case_spec.h"

namespace kvrope::regress {

// Throws FileError, with a pointer below spec.pointer, where keys that are right one by one do not go
// together. What only the operation can refuse is left to it.
void check_keys_together(const CaseSpec& spec);

}  // namespace kvrope::regress
