// The one checker: everything about a call that can be judged without reading a tensor's values.
#pragma once

#include "arguments.h"
#include "operation.h"

namespace kvrope {

inline constexpr int64_t kMaxHeadSize = 512;
inline constexpr int64_t kMaxRows = (int64_t{1} << 31) - 1;  // of k: one launch takes no more
inline constexpr int64_t kMaxHeads = 65535;                  // of q, and of k and v together

// Ranks, shapes, dtypes, devices, rotary and cache options of what the operation takes; the rest is not
// looked at. Outputs must be present. Works on meta tensors and under symbolic sizes. Throws ValueError or
// TypeError that names the argument, what it got and what fits.
void check_arguments(const FusedArguments& args, Operation operation = Operation::fused);

// No element that the call writes is shared with another argument or with itself; q_out = q and k_out = k
// excepted. Works on meta tensors, by their storages; symbolic sizes are left to the call that runs. Throws
// ValueError that names both arguments.
void check_no_overlap(const FusedArguments& args, Operation operation = Operation::fused);

}  // namespace kvrope
