// A call as a case of kvrope-regress.
#pragma once

#include <nlohmann/json.hpp>

#include <string>

#include "arguments.h"

namespace kvrope {

using Json = nlohmann::ordered_json;

struct RecordedCase {
  std::string id;  // equal for calls that are not distinct
  Json keys;
};

// `is_captured`: the call runs later, so that its slots and positions cannot be read; random ones stand in.
RecordedCase make_recorded_case(const FusedArguments& args, bool is_captured);

}  // namespace kvrope
