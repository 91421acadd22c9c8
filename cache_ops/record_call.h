// KVROPE_RECORD=FILE.json: each distinct call that the fused operation serves becomes a case of that file, so
// that a serving run becomes a regression file. Recorded are shapes, strides, alignments, dtypes, options and
// the patterns of slots and positions, never data. A call is distinct if any of these has not been seen yet.
#pragma once

#include "arguments.h"

namespace kvrope {

// Whether the environment asks for it; read once.
bool records_calls();

// After a call that was served. Waits for the stream to read slots and positions; of a call that is being
// captured in a CUDA graph they are unknown, and the case says so by its tag. Never throws: what goes wrong
// is told once as a warning, and the call is unharmed.
void record_call(const FusedArguments& args);

}  // namespace kvrope
