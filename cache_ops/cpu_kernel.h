// The operation on the CPU: all values are judged first, then the rows are served in parallel.
#pragma once

#include "cpu_targets.h"

namespace kvrope {

// Throws c10::IndexError that names argument, row and value before anything is written. Of rows with one slot
// the last is kept.
void run_on_cpu(const char* operation, const RopeCacheParams& params,
                const CpuTarget& target = cpu_targets().front());

}  // namespace kvrope
