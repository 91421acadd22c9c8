// The arithmetic that a call asks for.
#pragma once

#include <cstdint>

#include "runner/case_spec.h"

namespace kvrope::regress {

// Floating-point operations: six for each pair that is rotated (four products, two sums), and one for each
// element that a scale divides on its way into a cache. Padding is counted as if it were cached.
int64_t call_flops(const CaseSpec& spec);

}  // namespace kvrope::regress
