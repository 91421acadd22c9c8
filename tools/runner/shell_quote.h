// Arguments as a shell takes them back.
#pragma once

#include <string>

namespace kvrope::regress {

std::string shell_quoted(const std::string& argument);

// A glob that matches this text alone.
std::string escaped_glob(const std::string& text);

}  // namespace kvrope::regress
