// Runs one case: makes its tensors, calls the operation, and says how it went.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>

#include "arguments.h"
#include "runner/case_spec.h"
#include "runner/comparator.h"

namespace kvrope::regress {

struct CallData;
class CallBuffers;

enum class Disposition { passed, failed, rejected_as_expected, skipped, error };
const char* name_of(Disposition disposition);

struct CaseResult {
  Disposition disposition = Disposition::passed;
  std::string message;  // why, where it has not passed; the error of a rejected case
  Findings findings;
  double seconds = 0;
};

// What a call left behind that did not do what it should, for a look at its tensors.
struct MismatchedCall {
  const CallData& data;
  const CallBuffers& buffers;
  const FusedOutputs* outputs;  // none where it raised
  const CaseResult& result;
};
using OnMismatch = std::function<void(const MismatchedCall&)>;

// The operation is a parameter so that a faulty one can be handed in.
using Operation = std::function<FusedOutputs(const FusedArguments&)>;

// Never throws. A call that raises is an error of the case unless the case expects that; where it expects
// one, CUDA may report it as a recorded fault instead. `on_mismatch` is called where memory is not as it
// should be; what it throws is added to the message.
CaseResult run_case(const CaseSpec& spec, c10::Device device, const Operation& operation,
                    const OnMismatch& on_mismatch = {});

}  // namespace kvrope::regress
