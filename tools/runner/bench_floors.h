// What ours is measured against.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runner/call_bytes.h"
#include "runner/case_spec.h"
#include "runner/row_plan.h"
#include "runner/timed_calls.h"

namespace kvrope::regress {

struct Floor {
  std::string name;
  int64_t bytes;  // that it reads and writes
  Call call;      // call i uses the buffers of set i % sets
};

// On CUDA:
//   copy    a kernel that copies as many bytes as q, k, v, the outputs and the cached rows have, and no more
//   memcpy  cudaMemcpyAsync of all that must move, table rows and indices included
//   chain   for few rows: the same dependencies and the least work
// On the CPU memcpy alone, by all threads. Both copies read one half of the bytes and write the other.
std::vector<Floor> make_floors(const CaseSpec& spec, const RowPlan& plan, const CallBytes& bytes,
                               c10::Device device, const CallTiming& timing);

}  // namespace kvrope::regress
