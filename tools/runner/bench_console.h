// What a benchmark says to people.
#pragma once

#include <cstdio>
#include <string>

#include "runner/bench_case.h"

namespace kvrope::regress {

// What the columns and the L2 states are.
void print_bench_heading(std::FILE* stream, c10::Device device);

// One line for each candidate of ours.
void print_bench_result(std::FILE* stream, const CaseSpec& spec, const BenchCheck& check,
                        const BenchResult& result);

}  // namespace kvrope::regress
