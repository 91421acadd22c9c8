#include "runner/printable.h"

#include <cstdint>
#include <cstdio>

namespace kvrope::regress {
namespace {

bool is_continuation(unsigned char byte) {
  return (byte & 0xc0) == 0x80;
}

// Bytes of the character that starts here, 0 where it is no UTF-8 or a control character.
size_t length_of_character(const std::string& text, size_t at) {
  auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0; };
  unsigned char first = static_cast<unsigned char>(byte(at));
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  uint32_t code = first & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    auto next = static_cast<unsigned char>(byte(at + i));
    if (!is_continuation(next)) return 0;
    code = (code << 6) | (next & 0x3f);
  }
  bool is_overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  bool is_no_character = (code >= 0xd800 && code <= 0xdfff) || code > 0x10ffff || (code & 0xfffe) == 0xfffe;
  bool is_control = code < 0xa0;
  // Marks that turn the direction of what follows.
  bool is_direction = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return is_overlong || is_no_character || is_control || is_direction ? 0 : length;
}

}  // namespace

std::string printable(const std::string& text) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    size_t length = length_of_character(text, at);
    if (length == 0) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\x%02x", static_cast<unsigned char>(text[at]));
      shown += escape;
      ++at;
    } else {
      shown.append(text, at, length);
      at += length;
    }
  }
  return shown;
}

std::string shortened(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  while (bytes > 0 && is_continuation(static_cast<unsigned char>(text[bytes]))) --bytes;
  return text.substr(0, bytes);
}

}  // namespace kvrope::regress
