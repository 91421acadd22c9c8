// Compares everything that a call left behind with the oracle.
#pragma once

#include "arguments.h"
#include "runner/call_buffers.h"
#include "runner/comparator.h"
#include "runner/oracle.h"

namespace kvrope::regress {

// After a call that returned: outputs and addressed slots hold what the oracle wants, every other byte is as
// before.
Findings check_call(const CaseSpec& spec, const CallData& data, const CallBuffers& buffers,
                    const FusedOutputs& outputs);

// After a call that raised: nothing has changed.
Findings check_untouched(const CallBuffers& buffers);

}  // namespace kvrope::regress
