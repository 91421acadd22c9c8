#pragma once

namespace kvrope::regress {

// Bytes that the machine can give out without swapping; infinity where it does not say.
double available_host_memory();

}  // namespace kvrope::regress
