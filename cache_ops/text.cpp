#include "text.h"

#include <array>
#include <cstdio>

namespace kvrope {

std::string text_of(double number) {
  std::array<char, 32> digits;
  std::snprintf(digits.data(), digits.size(), "%.10g", number);
  return digits.data();
}

std::string text_of(const c10::SymInt& number) {
  const std::optional<int64_t> known = number.maybe_as_int();
  return known ? std::to_string(*known) : number.toSymNode()->str();
}

std::string text_of(c10::SymIntArrayRef numbers) {
  std::string text = "(";
  for (const c10::SymInt& number : numbers) text += (text.size() > 1 ? ", " : "") + text_of(number);
  return text + (numbers.size() == 1 ? ",)" : ")");
}

}  // namespace kvrope
