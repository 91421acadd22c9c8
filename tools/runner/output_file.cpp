#include "runner/output_file.h"

#include <iostream>

#include "runner/case_selection.h"

namespace kvrope::regress {

OutputFile::OutputFile(const std::string& path) : path_(path) {
  if (path.empty() || path == "-") return;
  file_.open(path);
  if (!file_) throw CommandError(kExitUsage, path + ": cannot be written");
}

void OutputFile::write(const std::string& text) {
  if (path_.empty()) return;
  std::ostream& out = path_ == "-" ? std::cout : file_;
  out << text << std::flush;
  if (!out) throw CommandError(kExitUsage, path_ + ": cannot be written");
}

}  // namespace kvrope::regress
