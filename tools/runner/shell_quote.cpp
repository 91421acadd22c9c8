#include "runner/shell_quote.h"

#include <algorithm>
#include <cstdio>

namespace kvrope::regress {
namespace {

bool is_control(unsigned char letter) {
  return letter < 0x20 || letter == 0x7f;
}

// $'...', which bash, zsh and ksh know: control characters as they would be typed.
std::string quoted_with_escapes(const std::string& argument) {
  std::string quoted = "$'";
  for (char letter : argument) {
    if (is_control(static_cast<unsigned char>(letter))) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\%03o", static_cast<unsigned char>(letter));
      quoted += escape;
    } else {
      if (letter == '\'' || letter == '\\') quoted += '\\';
      quoted += letter;
    }
  }
  return quoted + "'";
}

}  // namespace

std::string shell_quoted(const std::string& argument) {
  const char* harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
  if (!argument.empty() && argument.find_first_not_of(harmless) == std::string::npos) return argument;
  if (std::any_of(argument.begin(), argument.end(), is_control)) return quoted_with_escapes(argument);
  std::string quoted = "'";
  for (char letter : argument) {
    if (letter == '\'') {
      quoted += "'\\''";
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

std::string escaped_glob(const std::string& text) {
  std::string glob;
  for (char letter : text) {
    if (letter == '*' || letter == '?' || letter == '[' || letter == '\\') glob += '\\';
    glob += letter;
  }
  return glob;
}

}  // namespace kvrope::regress
