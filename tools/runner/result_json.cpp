#include "runner/result_json.h"

#include <stdexcept>

namespace kvrope::regress {
namespace {

Json describe_mismatch(const Mismatch& mismatch) {
  Json json;
  json["tensor"] = mismatch.tensor;
  json["where"] = mismatch.where;
  json["slot"] = mismatch.slot ? Json(*mismatch.slot) : Json(nullptr);
  json["want"] = mismatch.want;
  json["got"] = mismatch.got;
  return json;
}

Mismatch read_mismatch(const Json& json) {
  Mismatch mismatch;
  mismatch.tensor = json.at("tensor");
  mismatch.where = json.at("where");
  if (!json.at("slot").is_null()) mismatch.slot = json.at("slot").get<int64_t>();
  mismatch.want = json.at("want");
  mismatch.got = json.at("got");
  return mismatch;
}

Disposition disposition_named(const std::string& name) {
  for (Disposition disposition : {Disposition::passed, Disposition::failed, Disposition::rejected_as_expected,
                                  Disposition::skipped, Disposition::error}) {
    if (name == name_of(disposition)) return disposition;
  }
  throw std::invalid_argument("no disposition: " + name);
}

}  // namespace

Json to_json(const CaseResult& result) {
  Json json;
  json["disposition"] = name_of(result.disposition);
  json["message"] = result.message;
  json["seconds"] = result.seconds;
  json["elements"] = result.findings.elements;
  json["largest_error"] = Json::object();
  for (const auto& [tensor, ulps] : result.findings.largest_error) json["largest_error"][tensor] = ulps;
  json["mismatches"] = result.findings.mismatches;
  json["first_mismatches"] = Json::array();
  for (const Mismatch& mismatch : result.findings.kept) {
    json["first_mismatches"].push_back(describe_mismatch(mismatch));
  }
  return json;
}

CaseResult result_from_json(const Json& json) {
  CaseResult result;
  result.disposition = disposition_named(json.at("disposition"));
  result.message = json.at("message");
  result.seconds = json.at("seconds");
  result.findings.elements = json.at("elements");
  for (const auto& item : json.at("largest_error").items()) {
    result.findings.largest_error[item.key()] = item.value();
  }
  result.findings.mismatches = json.at("mismatches");
  for (const Json& mismatch : json.at("first_mismatches")) {
    result.findings.kept.push_back(read_mismatch(mismatch));
  }
  return result;
}

}  // namespace kvrope::regress
