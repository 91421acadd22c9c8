#include "runner/junit_report.h"

#include <cstdio>

#include "runner/console.h"
#include "runner/printable.h"

namespace kvrope::regress {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (char letter : printable(text)) {
    switch (letter) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += letter;
    }
  }
  return result;
}

std::string attribute(const std::string& name, const std::string& value) {
  return " " + name + "=\"" + escaped(value) + "\"";
}

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.6f", seconds);
  return text;
}

// What a case that has not passed holds.
std::string element(const std::string& name, const CaseResult& result) {
  std::string text = "    <" + name + attribute("message", result.message) + ">";
  for (const std::string& line : mismatch_lines(result.findings)) text += escaped(line) + "\n";
  return text + "</" + name + ">\n";
}

}  // namespace

void JunitReport::add(const CaseSpec& spec, const CaseResult& result) {
  ++count_;
  seconds_ += result.seconds;
  cases_ += "  <testcase" + attribute("classname", spec.file) + attribute("name", spec.name) +
            attribute("time", seconds_text(result.seconds)) + ">\n";
  switch (result.disposition) {
    case Disposition::passed:
    case Disposition::rejected_as_expected:
      break;
    case Disposition::failed:
      ++failures_;
      cases_ += element("failure", result);
      break;
    case Disposition::error:
      ++errors_;
      cases_ += element("error", result);
      break;
    case Disposition::skipped:
      ++skipped_;
      cases_ += element("skipped", result);
      break;
  }
  cases_ += "  </testcase>\n";
}

std::string JunitReport::text() const {
  std::string totals =
      attribute("tests", std::to_string(count_)) + attribute("failures", std::to_string(failures_)) +
      attribute("errors", std::to_string(errors_)) + attribute("skipped", std::to_string(skipped_)) +
      attribute("time", seconds_text(seconds_));
  return "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites" + totals + ">\n<testsuite" +
         attribute("name", "kvrope-regress") + totals + ">\n" + cases_ + "</testsuite>\n</testsuites>\n";
}

}  // namespace kvrope::regress
