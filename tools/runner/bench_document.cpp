#include "runner/bench_document.h"

#include <cmath>

#include "runner/bench_statistics.h"

namespace kvrope::regress {
namespace {

constexpr const char* kOurs = "kvrope";

// Four decimals of a microsecond are finer than any clock here.
double rounded(double value) {
  return std::round(value * 1e4) / 1e4;
}

Json describe_times(const CandidateTimes& times) {
  double microseconds = median(times.microseconds);
  Json json;
  json["microseconds"] = rounded(microseconds);
  json["bytes"] = times.bytes;
  json["gb_per_second"] = rounded(static_cast<double>(times.bytes) / microseconds / 1000);
  json["rounds"] = Json::array();
  for (double value : times.microseconds) json["rounds"].push_back(rounded(value));
  return json;
}

std::vector<double> rounds_of(const Json& times, const std::string& candidate) {
  auto rounds = times.at(candidate).at("rounds").get<std::vector<double>>();
  if (rounds.empty()) throw FileError("", "no result document: " + candidate + " has no rounds");
  return rounds;
}

bool is_ours(const std::string& candidate) {
  return candidate.starts_with(kOurs);
}

Json describe_bytes(const CallBytes& bytes) {
  return {{"all", bytes.all()},
          {"rows_read", bytes.rows_read},
          {"rows_written", bytes.rows_written},
          {"indices", bytes.indices}};
}

}  // namespace

Json describe(const CaseSpec& spec, const BenchCheck& check, const BenchResult& result) {
  Json json;
  json["num_tokens"] = spec.tokens();
  json["l2"] = name_of(result.l2);
  json["checked_against"] = check.against;
  json["sets"] = result.group.sets;
  json["calls"] = result.group.calls;
  json["bytes"] = describe_bytes(result.bytes);
  json["partial_value_sectors"] = result.partial_value_sectors;
  json["times"] = Json::object();
  json["ratios"] = Json::object();
  for (const CandidateTimes& times : result.times) {
    json["times"][times.name] = describe_times(times);
    if (is_ours(times.name)) continue;
    json["ratios"][times.name] =
        rounded(median(result.times.front().microseconds) / median(times.microseconds));
  }
  json["host_microseconds"] =
      result.host_microseconds ? Json(rounded(*result.host_microseconds)) : Json(nullptr);
  return json;
}

std::vector<std::string> our_candidates(const Json& result) {
  std::vector<std::string> names;
  if (!result.contains("times")) return names;
  for (const auto& [name, times] : result.at("times").items()) {
    if (is_ours(name)) names.push_back(name);
  }
  return names;
}

MeasuredTimes measured_times(const Json& result, const std::string& candidate) {
  const Json& times = result.at("times");
  MeasuredTimes measured;
  measured.microseconds = rounds_of(times, candidate);
  for (const char* floor : {"copy", "memcpy"}) {
    if (measured.floor || !times.contains(floor)) continue;
    measured.floor = median(rounds_of(times, floor));
  }
  return measured;
}

}  // namespace kvrope::regress
