// The floors on a GPU (tools/bench/floors.cu). Builds with CUDA only.
#pragma once

#include "runner/bench_floors.h"

namespace kvrope::regress {

std::vector<Floor> make_cuda_floors(const CaseSpec& spec, const RowPlan& plan, const CallBytes& bytes,
                                    c10::Device device, const CallTiming& timing);

}  // namespace kvrope::regress
