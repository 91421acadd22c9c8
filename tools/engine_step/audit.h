// Counts the blocks anew, from the tables of the requests, and says what does not add up.
#pragma once

#include <string>
#include <vector>

#include "engine_step/scheduler.h"
#include "engine_step/step_rows.h"

namespace kvrope::engine {

// Blocks that are lost (held by nobody, yet not free), shared by accident, or free while a request holds
// them. With no request left, every block must be free.
std::vector<std::string> audit_blocks(const Scheduler& scheduler);

// Slots that a step writes twice, or in a block that another request shares.
std::vector<std::string> audit_writes(const StepRows& rows, const Scheduler& scheduler);

}  // namespace kvrope::engine
