// Comparing two result documents.
#include "runner/results_comparison.h"

#include <gtest/gtest.h>

namespace kvrope::regress {
namespace {

Json ran(const std::string& name, const std::string& disposition, const std::string& message = "") {
  return {{"name", name}, {"disposition", disposition}, {"message", message}};
}

Json measured(const std::string& name, const std::string& l2, double microseconds) {
  Json json = ran(name, "passed");
  json["l2"] = l2;
  json["times"]["kvrope"]["rounds"] = std::vector<double>(30, microseconds);
  json["times"]["copy"]["rounds"] = std::vector<double>(30, 9.0);
  return json;
}

Json document(std::vector<Json> results) {
  return {{"results", results}};
}

std::string words(const Json& before, const Json& now) {
  std::string text;
  for (const Comparison& comparison : compare_results(before, now, 0.05)) {
    text += comparison.word + " " + comparison.case_name + (comparison.detail.empty() ? "" : ": ") +
            comparison.detail + "\n";
  }
  return text;
}

TEST(ResultsComparison, DispositionsOfRunCases) {
  Json before = document({ran("a", "passed"), ran("b", "passed"), ran("c", "failed"), ran("d", "error"),
                          ran("e", "passed"), ran("f", "rejected-as-expected")});
  Json now = document({ran("a", "passed"), ran("b", "failed", "3 mismatches"), ran("c", "passed"),
                       ran("d", "failed", "1 mismatches"), ran("g", "error", "boom"),
                       ran("f", "skipped", "no memory")});
  EXPECT_EQ(words(before, now),
            "NEWLY FAILING b: 3 mismatches\nNEWLY PASSING c\nFAILING d: 1 mismatches\nNEWLY FAILING g: boom\n"
            "SKIPPED f: no memory\nGONE e\n");
}

TEST(ResultsComparison, TimesOfMeasuredCases) {
  Json before =
      document({measured("a", "warm", 10), measured("a", "rotating", 10), measured("b", "warm", 10)});
  Json now = document({measured("a", "warm", 11), measured("a", "rotating", 10.1), measured("b", "warm", 8)});
  EXPECT_EQ(words(before, now),
            "SLOW a, warm, kvrope: 10.00 -> 11.00 us (+10.0 %)\nSAME a, rotating, kvrope: 10.00 -> 10.10 us "
            "(+1.0 %)\n"
            "FAST b, warm, kvrope: 10.00 -> 8.00 us (-20.0 %)\n");
}

TEST(ResultsComparison, OtherDevicesAreSaid) {
  Json one = {{"device", {{"name", "one"}}}}, two = {{"device", {{"name", "two"}}}};
  EXPECT_EQ(device_note(one, one), "");
  EXPECT_EQ(device_note(one, two), "note: \"one\" then, \"two\" now");
  EXPECT_EQ(device_note(one, Json::object()), "note: \"one\" then, an unnamed device now");
}

TEST(ResultsComparison, RegressionsAreSlowNewlyFailingAndMissingCases) {
  for (const char* word : {"SLOW", "NEWLY FAILING", "SKIPPED", "GONE"}) {
    EXPECT_TRUE((Comparison{"a", word, ""}).is_regression());
  }
  for (const char* word : {"FAST", "SAME", "UNSURE", "FAILING", "NEWLY PASSING", "NEW"}) {
    EXPECT_FALSE((Comparison{"a", word, ""}).is_regression());
  }
}

}  // namespace
}  // namespace kvrope::regress
