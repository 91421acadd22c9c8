// Checked tensors to the kernel's parameters.
#pragma once

#include "arguments.h"
#include "operation.h"
#include "rope_cache_params.h"

namespace kvrope {

// args have passed check_arguments and hold the outputs. The pointers stay valid as long as the tensors live.
RopeCacheParams make_params(const FusedArguments& args, Operation operation = Operation::fused);

}  // namespace kvrope
