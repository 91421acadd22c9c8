#include "runner/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>

namespace kvrope::regress {
namespace {

int64_t count(const Counts& counts, Disposition disposition) {
  auto found = counts.of.find(disposition);
  return found == counts.of.end() ? 0 : found->second;
}

size_t width_of(std::FILE* terminal) {
  winsize size{};
  bool is_known = ioctl(fileno(terminal), TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : 80;
}

std::string mismatch_text(const Mismatch& mismatch) {
  std::string text = mismatch.tensor;
  if (mismatch.slot) text += ", slot " + std::to_string(*mismatch.slot);
  if (!mismatch.where.empty()) text += " " + mismatch.where;
  return text + ": want " + mismatch.want + ", got " + mismatch.got;
}

}  // namespace

int64_t Counts::passed() const {
  return count(*this, Disposition::passed) + count(*this, Disposition::rejected_as_expected);
}
int64_t Counts::failed() const {
  return count(*this, Disposition::failed) + count(*this, Disposition::error);
}
int64_t Counts::skipped() const {
  return count(*this, Disposition::skipped);
}

Console::Console(std::FILE* stream) : stream_(stream), is_terminal_(isatty(fileno(stream)) != 0) {
  const char* no_colour = std::getenv("NO_COLOR");
  has_colour_ = is_terminal_ && (!no_colour || !*no_colour);
}

void Console::clear_progress() {
  if (is_terminal_) std::fputs("\r\033[K", stream_);
}

std::string Console::coloured(Disposition disposition, const std::string& text) const {
  if (!has_colour_) return text;
  bool is_bad = disposition == Disposition::failed || disposition == Disposition::error;
  const char* colour = is_bad ? "\033[31m" : disposition == Disposition::skipped ? "\033[33m" : "\033[32m";
  return colour + text + "\033[0m";
}

void Console::begin_case(const std::string& name, int64_t number, int64_t total) {
  if (!is_terminal_) return;
  std::ostringstream line;
  line << '[' << number << '/' << total << "] " << name;
  clear_progress();
  std::fputs(line.str().substr(0, width_of(stream_) - 1).c_str(), stream_);
  std::fflush(stream_);
}

void Console::end_case(const std::string& name, const CaseResult& result, const std::string& repeat_command) {
  bool is_good =
      result.disposition == Disposition::passed || result.disposition == Disposition::rejected_as_expected;
  if (is_good && is_terminal_) return;  // the progress line says enough
  clear_progress();
  std::string line = coloured(result.disposition, name_of(result.disposition)) + " " + name;
  if (!is_good) line += ": " + result.message;
  std::fprintf(stream_, "%s\n", line.c_str());
  for (const Mismatch& mismatch : result.findings.kept) {
    std::fprintf(stream_, "  %s\n", mismatch_text(mismatch).c_str());
  }
  auto kept = static_cast<int64_t>(result.findings.kept.size());
  if (result.findings.mismatches > kept) {
    std::fprintf(stream_, "  and %lld more\n", static_cast<long long>(result.findings.mismatches - kept));
  }
  bool is_bad = result.disposition == Disposition::failed || result.disposition == Disposition::error;
  if (is_bad) std::fprintf(stream_, "  repeat: %s\n", repeat_command.c_str());
}

void Console::summary(const Counts& counts) {
  clear_progress();
  std::fprintf(stream_, "%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(counts.passed()),
               static_cast<long long>(counts.failed()), static_cast<long long>(counts.skipped()));
  std::fflush(stream_);
}

}  // namespace kvrope::regress
