// Makes a failing case small: drops its keys and lowers its numbers one by one, as long as it fails alike.
#pragma once

#include <functional>

#include "runner/fuzz_case.h"

namespace kvrope::regress {

// `fails_alike` runs a candidate, which may be no valid case at all; it is asked at most `most_runs` times.
// The pinned keys and the name stay.
Json shrink_case(const FuzzCase& failing, const std::function<bool(const Json& keys)>& fails_alike,
                 int most_runs);

}  // namespace kvrope::regress
