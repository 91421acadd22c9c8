#include "runner/output_file.h"

#include <filesystem>
#include <iostream>

#include "runner/case_selection.h"

namespace kvrope::regress {

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path.empty() || path == "-") return;
  file_.open(path);
  if (!file_) throw CommandError(kExitUsage, path + ": cannot be written");
}

void require_no_input(const std::string& output, const std::vector<std::string>& inputs) {
  for (const std::string& input : inputs) {
    std::error_code none;  // files that are not there are none
    if (std::filesystem::equivalent(output, input, none)) {
      throw CommandError(kExitUsage,
                         output + ": is read by the command, the results cannot be written there");
    }
  }
}

void OutputFile::write(const std::string& text) {
  if (path_.empty()) return;
  std::ostream& out = path_ == "-" ? std::cout : file_;
  out << text << std::flush;
  if (!out) throw CommandError(kExitUsage, path_ + ": cannot be written");
}

}  // namespace kvrope::regress
