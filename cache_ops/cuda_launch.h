// The operation on CUDA: current stream of the tensors' device, no synchronisation, no allocation.
#pragma once

#include <c10/core/Device.h>

#include "rope_cache_params.h"

namespace kvrope {

// Throws c10::Error where the launch itself fails. With KVROPE_CHECK=1 in the environment it also waits for
// the launch and raises its fault, except under graph capture.
void run_on_cuda(RopeCacheParams params, c10::Device device);

}  // namespace kvrope
