#include "runner/case_selection.h"

#include <ATen/Context.h>
#include <fnmatch.h>

#include <algorithm>

#include "runner/case_file.h"
#include "runner/json_document.h"
#include "runner/tag_expression.h"

namespace kvrope::regress {
namespace {

TagExpression parse_tags(const std::string& text) {
  try {
    return TagExpression(text);
  } catch (const std::invalid_argument& error) {
    throw CommandError(kExitUsage, std::string("--tag: ") + error.what());
  }
}

std::vector<CaseSpec> read_all(const std::vector<std::string>& files) {
  std::vector<CaseSpec> cases;
  for (const std::string& file : files) {
    if (std::count(files.begin(), files.end(), file) > 1)
      throw CommandError(kExitUsage, file + ": is given twice");
    try {
      std::vector<CaseSpec> more = read_case_file(file);
      cases.insert(cases.end(), more.begin(), more.end());
      check_unique_names(cases);
    } catch (const FileError& error) {
      throw CommandError(kExitUsage, file + ": " + error.what());
    }
  }
  return cases;
}

}  // namespace

std::vector<CaseSpec> select_cases(const Selection& selection) {
  TagExpression tags = parse_tags(selection.tags);
  std::vector<CaseSpec> cases = read_all(selection.files);
  std::erase_if(cases, [&](const CaseSpec& spec) {
    bool is_named = selection.filter.empty() || fnmatch(selection.filter.c_str(), spec.name.c_str(), 0) == 0;
    return !is_named || !tags.matches(spec.tags);
  });
  if (cases.empty()) throw CommandError(kExitUsage, "0 cases matched");
  for (CaseSpec& spec : cases) spec.seed = selection.seed.value_or(spec.seed);
  return cases;
}

c10::Device choose_device(const Selection& selection) {
#ifdef KVROPE_WITH_CUDA
  bool has_cuda = at::hasCUDA();
  const char* reason = "no CUDA device is there";
#else
  bool has_cuda = false;
  const char* reason = "this build has the CPU kernel alone";
#endif
  if (selection.device == "cuda" && !has_cuda)
    throw CommandError(kExitNoDevice, std::string("cuda: ") + reason);
  bool is_cuda = selection.device == "cuda" || (selection.device == "auto" && has_cuda);
  return is_cuda ? c10::Device(c10::kCUDA, 0) : c10::Device(c10::kCPU);
}

}  // namespace kvrope::regress
