// Text of case files and of errors as it may go to a terminal or into XML: what would move the cursor, or is
// no UTF-8, is shown as \xNN.
#pragma once

#include <string>

namespace kvrope::regress {

std::string printable(const std::string& text);

// At most so many bytes, cut between characters.
std::string shortened(const std::string& text, size_t bytes);

}  // namespace kvrope::regress
