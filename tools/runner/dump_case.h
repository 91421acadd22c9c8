// The tensors of a case that did not do what it should, as files for numpy.
#pragma once

#include <filesystem>

#include "runner/case_spec.h"
#include "runner/run_case.h"

namespace kvrope::regress {

// What is written, for the help of the command.
constexpr const char* kDumpHelp =
    "Write the tensors of each mismatching case into a folder of its own below this one: index.json (name, "
    "message, "
    "repeat command, what each file is), inputs and integers, of q_out, k_out, zeros_out and of the "
    "addressed slots "
    "of both caches what was wanted (float64) and got (float32), and the bytes of every buffer before and "
    "after the "
    "call, all as .npy for numpy.load";

// Into a folder of that name in `parent`. Throws std::exception where it cannot be written.
void dump_case(const std::filesystem::path& parent, int64_t number, const CaseSpec& spec,
               const MismatchedCall& call, const std::string& repeat_command);

}  // namespace kvrope::regress
