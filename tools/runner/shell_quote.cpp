#include "runner/shell_quote.h"

namespace kvrope::regress {

std::string shell_quoted(const std::string& argument) {
  const char* harmless = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=,:+@%";
  if (!argument.empty() && argument.find_first_not_of(harmless) == std::string::npos) return argument;
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
