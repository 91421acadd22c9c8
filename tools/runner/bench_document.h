// A measured case as a result document has it, there and back.
#pragma once

#include <string>
#include <vector>

#include "runner/bench_case.h"
#include "runner/json_document.h"
#include "runner/verdict.h"

namespace kvrope::regress {

// The keys that a measured case has beyond those of a case that was run:
//   num_tokens, l2, checked_against, sets, calls, bytes {all, rows_read, rows_written, indices},
//   partial_value_sectors, times {kvrope, copy, ...: {microseconds, bytes, gb_per_second, rounds}}, ratios
//   {copy, ...: ours to it}, host_microseconds
Json describe(const CaseSpec& spec, const BenchCheck& check, const BenchResult& result);

// The candidates of a result that are ours.
std::vector<std::string> our_candidates(const Json& result);

// The rounds of a candidate, and the median of the floor of the same rounds. Throws FileError where there are
// none.
MeasuredTimes measured_times(const Json& result, const std::string& candidate);

}  // namespace kvrope::regress
