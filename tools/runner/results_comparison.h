// Compares two result documents, of run or of bench.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "runner/json_document.h"

namespace kvrope::regress {

struct Comparison {
  std::string case_name;  // with the L2 state and the candidate where the case was measured
  // FAST, SLOW, SAME, UNSURE, NEWLY FAILING, NEWLY PASSING, FAILING, NEW, GONE, and SKIPPED for a case that
  // was good.
  std::string word;
  std::string detail;

  // What no longer runs may be slow or wrong unseen.
  bool is_regression() const {
    return word == "SLOW" || word == "NEWLY FAILING" || word == "SKIPPED" || word == "GONE";
  }
};

// In the order of the present document; cases that were merely run and passed in both are left out.
std::vector<Comparison> compare_results(const Json& before, const Json& now, double threshold);

// Throws CommandError where no case is in both: nothing would have been compared.
void require_common_cases(const Json& before, const Json& now);

// That the two were measured on different devices, so that their times say little; empty where not.
std::string device_note(const Json& before, const Json& now);

// A line for each, then one line of counts. Says whether any is a regression.
bool print_comparisons(std::FILE* stream, const std::vector<Comparison>& comparisons);

// Throws CommandError where the file is missing or is no result document.
Json read_results(const std::string& path);

}  // namespace kvrope::regress
