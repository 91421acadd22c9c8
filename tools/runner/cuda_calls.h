// Calls on a GPU, timed as replays of a CUDA graph. Builds with CUDA only.
#pragma once

#include "runner/timed_calls.h"

namespace kvrope::regress {

std::unique_ptr<TimedCalls> prepare_cuda_calls(c10::Device device, const CallTiming& timing,
                                               const Call& call);
void wait_for_cuda(c10::Device device);  // throws what a kernel has failed with
int64_t free_cuda_memory(c10::Device device);

}  // namespace kvrope::regress
