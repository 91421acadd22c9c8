// The file that a command writes its results to.
#pragma once

#include <fstream>
#include <string>
#include <vector>

namespace kvrope::regress {

// Opened before the first case, so that a path that cannot be written costs no run; "-" is standard output,
// an empty path nothing. Throws CommandError where it cannot be written.
class OutputFile {
 public:
  explicit OutputFile(const std::string& path);
  void write(const std::string& text);

 private:
  std::string path_;
  std::ofstream file_;
};

// Throws CommandError where the output is one of the files that the command reads.
void require_no_input(const std::string& output, const std::vector<std::string>& inputs);

}  // namespace kvrope::regress
