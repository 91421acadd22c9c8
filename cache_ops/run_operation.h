// Any of the operations with its outputs present: what the torch operators and the C++ calls share.
#pragma once

#include "arguments.h"
#include "operation.h"

namespace kvrope {

// Checks, then runs on the device of q, or of k where nothing is rotated (CPU or CUDA).
void run_operation(const FusedArguments& args, Operation operation);

// A half's arguments in the form that all operations share. Of rope's k, absent is undefined.
FusedArguments as_fused(const RopeArguments& args);
FusedArguments as_fused(const ReshapeAndCacheArguments& args);

}  // namespace kvrope
