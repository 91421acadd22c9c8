// A case's result as JSON: what the result document holds of it, and how it travels between processes.
#pragma once

#include "runner/json_document.h"
#include "runner/run_case.h"

namespace kvrope::regress {

Json to_json(const CaseResult& result);
CaseResult result_from_json(const Json& json);

}  // namespace kvrope::regress
