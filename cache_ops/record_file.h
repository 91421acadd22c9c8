// A case file that grows: valid after every append, and shared by processes that record into it at once.
#pragma once

#include <string>

#include "recorded_case.h"

namespace kvrope {

class RecordFile {
 public:
  explicit RecordFile(const std::string& path);

  // Adds the case unless one of its id is there. Throws std::runtime_error that says what is wrong with the
  // file, which is then as it was.
  void append(const RecordedCase& recorded) const;

 private:
  std::string path_, folder_;  // absolute
};

}  // namespace kvrope
