#include "record_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace kvrope {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

// Held while the file is read and replaced. The folder is locked, since the file itself is replaced.
class FolderLock {
 public:
  explicit FolderLock(const std::string& folder) : folder_(open(folder.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (folder_ < 0) fail("cannot be written, its folder cannot be opened");
    while (flock(folder_, LOCK_EX) != 0) {
      if (errno != EINTR) break;  // some file systems have no locks: a single process does without
    }
  }
  ~FolderLock() { close(folder_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int folder_;
};

// Nothing where there is no such file.
std::string read_text(const std::string& path) {
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw std::runtime_error("is no regular file and is left as it is");
  }
  FILE* file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) {
    if (errno == ENOENT) return "";
    fail("cannot be read");
  }
  std::string text;
  char part[1 << 16];
  for (size_t size; (size = std::fread(part, 1, sizeof part, file)) > 0;) text.append(part, size);
  const bool failed = std::ferror(file) != 0;
  std::fclose(file);
  if (failed) fail("cannot be read");
  return text;
}

// The cases that the file holds. Others' files are left alone.
Json read_cases(const std::string& path) {
  const std::string text = read_text(path);
  if (text.empty()) return Json::array();
  const Json document = Json::parse(text, nullptr, false);
  const bool is_ours = document.is_object() && document.size() == 2 &&
                       document.value("schema_version", Json()) == 1 && document.contains("cases") &&
                       document["cases"].is_array();
  if (!is_ours) {
    throw std::runtime_error(
        "holds something else than recorded cases (schema_version 1 and cases alone) and is left as it is");
  }
  return document["cases"];
}

void replace_file(const std::string& path, const std::string& text) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) fail("cannot be written");
  bool good = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = std::fclose(file) == 0 && good;
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  std::remove(temporary.c_str());
  errno = error;
  fail("cannot be written");
}

}  // namespace

RecordFile::RecordFile(const std::string& path)
    : path_(std::filesystem::absolute(path).string()),
      folder_(std::filesystem::path(path_).parent_path().string()) {}

void RecordFile::append(const RecordedCase& recorded) const {
  const FolderLock lock(folder_);
  Json cases = read_cases(path_);
  for (const Json& earlier : cases) {
    if (earlier.is_object() && earlier.value("id", "") == recorded.id) return;
  }
  cases.push_back(recorded.keys);
  std::string text = "{\n  \"schema_version\": 1,\n  \"cases\": [";
  for (size_t i = 0; i < cases.size(); ++i) text += (i == 0 ? "\n    " : ",\n    ") + cases[i].dump();
  replace_file(path_, text + "\n  ]\n}\n");
}

}  // namespace kvrope
