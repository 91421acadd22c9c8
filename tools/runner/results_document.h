// The result document that --json writes: {"meta": {...}, "device": {...}, "results": [...]}.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runner/json_document.h"
#include "runner/run_case.h"

namespace kvrope::regress {

class ResultsDocument {
 public:
  ResultsDocument(const std::vector<std::string>& arguments, c10::Device device);

  // `more` has further keys of the result.
  void add(const CaseSpec& spec, const CaseResult& result, const Json& more = Json::object());
  const Json& json() const { return document_; }
  void set_meta(const std::string& key, Json value) { document_["meta"][key] = std::move(value); }
  std::string text() const { return document_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n"; }

 private:
  Json document_;
};

}  // namespace kvrope::regress
