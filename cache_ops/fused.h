// The operation with its outputs present: what the torch operator and the C++ call share.
#pragma once

#include "arguments.h"

namespace kvrope {

// Checks, then runs on the device of q (CPU or CUDA). args.q_out and args.k_out are present.
void run_fused(const FusedArguments& args);

}  // namespace kvrope
