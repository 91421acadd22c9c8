// Error texts, put together as strings. No stream is used: a compiler may link its standard library into ours
// statically, and streams of two standard libraries in one process do not mix.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/SymIntArrayRef.h>

#include <string>

namespace kvrope {

inline std::string text_of(const char* text) {
  return text;
}
inline std::string text_of(const std::string& text) {
  return text;
}
inline std::string text_of(int64_t number) {
  return std::to_string(number);
}
inline std::string text_of(c10::Device device) {
  return device.str();
}
std::string text_of(double number);  // "0.25", "500000"
std::string text_of(const c10::SymInt& number);
std::string text_of(c10::SymIntArrayRef numbers);  // "(5, 2, 64)"

template <typename... Parts>
std::string text(const Parts&... parts) {
  return (text_of(parts) + ...);
}

}  // namespace kvrope
