#include "runner/results_comparison.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "runner/bench_document.h"
#include "runner/bench_statistics.h"
#include "runner/case_selection.h"

namespace kvrope::regress {
namespace {

std::string key_of(const Json& result) {
  std::string key = result.at("name").get<std::string>();
  if (result.contains("l2")) key += ", " + result.at("l2").get<std::string>();
  return key;
}

std::string disposition_of(const Json& result) {
  return result.at("disposition").get<std::string>();
}

bool is_good(const Json& result) {
  return disposition_of(result) == "passed" || disposition_of(result) == "rejected-as-expected";
}

bool is_bad(const Json& result) {
  return disposition_of(result) == "failed" || disposition_of(result) == "error";
}

Comparison compare_times(const Json& before, const Json& now, const std::string& candidate,
                         double threshold) {
  MeasuredTimes earlier = measured_times(before, candidate), present = measured_times(now, candidate);
  Judgement judgement = judge(earlier, present, threshold);
  char detail[100];
  std::snprintf(detail, sizeof detail, "%.2f -> %.2f us (%+.1f %%)", median(earlier.microseconds),
                median(present.microseconds), 100 * judgement.change);
  return {key_of(now) + ", " + candidate, name_of(judgement.verdict), detail};
}

void compare_result(const Json& before, const Json& now, double threshold, std::vector<Comparison>& found) {
  std::string key = key_of(now);
  std::string message = now.value("message", "");
  if (is_bad(now)) {
    found.push_back({key, is_bad(before) ? "FAILING" : "NEWLY FAILING", message});
    return;
  }
  if (is_bad(before)) found.push_back({key, "NEWLY PASSING", ""});
  if (!is_good(now) && is_good(before)) found.push_back({key, "SKIPPED", message});
  std::vector<std::string> earlier = our_candidates(before);
  for (const std::string& candidate : our_candidates(now)) {
    if (std::find(earlier.begin(), earlier.end(), candidate) == earlier.end()) continue;
    found.push_back(compare_times(before, now, candidate, threshold));
  }
}

std::map<std::string, const Json*> by_key(const Json& document) {
  std::map<std::string, const Json*> results;
  for (const Json& result : document.at("results")) results[key_of(result)] = &result;
  return results;
}

}  // namespace

std::vector<Comparison> compare_results(const Json& before, const Json& now, double threshold) {
  std::map<std::string, const Json*> earlier = by_key(before), present = by_key(now);
  std::vector<Comparison> found;
  for (const Json& result : now.at("results")) {
    auto other = earlier.find(key_of(result));
    if (other != earlier.end()) {
      compare_result(*other->second, result, threshold, found);
    } else {
      found.push_back(
          {key_of(result), is_bad(result) ? "NEWLY FAILING" : "NEW", result.value("message", "")});
    }
  }
  for (const Json& result : before.at("results")) {
    if (!present.count(key_of(result))) found.push_back({key_of(result), "GONE", ""});
  }
  return found;
}

void require_common_cases(const Json& before, const Json& now) {
  std::map<std::string, const Json*> earlier = by_key(before);
  for (const Json& result : now.at("results")) {
    if (earlier.count(key_of(result))) return;
  }
  throw CommandError(kExitUsage, "no case of the present results is among the earlier ones");
}

std::string device_note(const Json& before, const Json& now) {
  auto name_in = [](const Json& document) {
    Json device = document.value("device", Json::object());
    return device.is_object() && device.contains("name") ? shown(device["name"])
                                                         : std::string("an unnamed device");
  };
  std::string earlier = name_in(before), present = name_in(now);
  return earlier == present ? "" : "note: " + earlier + " then, " + present + " now";
}

bool print_comparisons(std::FILE* stream, const std::vector<Comparison>& comparisons) {
  std::map<std::string, int> counts;
  bool any_regression = false;
  for (const Comparison& comparison : comparisons) {
    std::fprintf(stream, "%-13s %s%s%s\n", comparison.word.c_str(), comparison.case_name.c_str(),
                 comparison.detail.empty() ? "" : ": ", comparison.detail.c_str());
    ++counts[comparison.word];
    any_regression = any_regression || comparison.is_regression();
  }
  std::string line;
  for (const char* word : {"SLOW", "FAST", "SAME", "UNSURE", "NEWLY FAILING", "SKIPPED", "GONE", "NEW"}) {
    line += (line.empty() ? "" : ", ") + std::to_string(counts[word]) + " " + word;
  }
  std::fprintf(stream, "%s\n", line.c_str());
  std::fflush(stream);
  return any_regression;
}

Json read_results(const std::string& path) {
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) throw CommandError(kExitUsage, path + ": cannot be read");
  try {
    Json document = parse_json(text);
    compare_results(document, document, 1);  // reads all that a comparison reads
    return document;
  } catch (const FileError& error) {
    throw CommandError(kExitUsage, path + ": " + error.what());
  } catch (const Json::exception& error) {
    std::string what = error.what();  // behind the library's own number for it
    throw CommandError(kExitUsage, path + ": no result document: " + what.substr(what.find("] ") + 2));
  }
}

}  // namespace kvrope::regress
