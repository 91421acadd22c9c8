#include "runner/console.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <sstream>

#include "runner/printable.h"

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

// "[12/640] 95/s, 7 s left"
std::string progress_text(int64_t done, int64_t total, double seconds) {
  std::ostringstream text;
  text << '[' << done;
  if (total > 0) text << '/' << total;
  text << ']';
  if (done == 0 || seconds < 0.5) return text.str();
  double rate = static_cast<double>(done) / seconds;
  text << ' ' << std::fixed << std::setprecision(rate < 10 ? 1 : 0) << rate << "/s";
  if (total <= done) return text.str();
  auto left = static_cast<int64_t>(std::ceil(static_cast<double>(total - done) / rate));
  text << ", ";
  if (left >= 60) text << left / 60 << " min ";
  text << left % 60 << " s left";
  return text.str();
}

}  // namespace

std::vector<std::string> mismatch_lines(const Findings& findings) {
  std::vector<std::string> lines;
  for (const Mismatch& mismatch : findings.kept) lines.push_back(mismatch_text(mismatch));
  auto kept = static_cast<int64_t>(findings.kept.size());
  if (findings.mismatches > kept)
    lines.push_back("and " + std::to_string(findings.mismatches - kept) + " more");
  return lines;
}

int64_t Counts::passed() const {
  return count(*this, Disposition::passed) + count(*this, Disposition::rejected_as_expected);
}
int64_t Counts::failed() const {
  return count(*this, Disposition::failed) + count(*this, Disposition::error);
}
int64_t Counts::skipped() const {
  return count(*this, Disposition::skipped);
}

Json Counts::as_json() const {
  Json json;
  for (Disposition disposition : {Disposition::passed, Disposition::failed, Disposition::rejected_as_expected,
                                  Disposition::skipped, Disposition::error}) {
    json[name_of(disposition)] = count(*this, disposition);
  }
  return json;
}

Console::Console(std::FILE* stream, bool is_quiet)
    : stream_(stream), is_quiet_(is_quiet), is_terminal_(isatty(fileno(stream)) != 0) {
  const char* no_colour = std::getenv("NO_COLOR");
  has_colour_ = is_terminal_ && (!no_colour || !*no_colour);
}

void Console::clear_progress() {
  if (is_terminal_ && !is_quiet_) std::fputs("\r\033[K", stream_);
}

std::string Console::coloured(Disposition disposition, const std::string& text) const {
  if (!has_colour_) return text;
  bool is_bad = disposition == Disposition::failed || disposition == Disposition::error;
  const char* colour = is_bad ? "\033[31m" : disposition == Disposition::skipped ? "\033[33m" : "\033[32m";
  return colour + text + "\033[0m";
}

void Console::progress(int64_t done, int64_t total, const std::string& text, bool elsewhere_too) {
  if (is_quiet_ || (!is_terminal_ && !elsewhere_too)) return;
  Clock::time_point now = Clock::now();
  auto pause = is_terminal_ ? std::chrono::milliseconds(50) : std::chrono::seconds(10);
  if (!is_terminal_ && last_progress_ == Clock::time_point()) last_progress_ = start_;
  if (now - last_progress_ < pause) return;
  last_progress_ = now;
  std::string line = progress_text(done, total, std::chrono::duration<double>(now - start_).count());
  line += ' ';
  line += printable(text);
  clear_progress();
  if (is_terminal_) {
    std::fputs(shortened(line, width_of(stream_) - 1).c_str(), stream_);
  } else {
    std::fprintf(stream_, "%s\n", line.c_str());
  }
  std::fflush(stream_);
}

void Console::begin_case(const std::string& name, int64_t number, int64_t total) {
  progress(number - 1, total, name, false);
}

void Console::end_case(const std::string& name, const CaseResult& result, const std::string& repeat_command) {
  bool is_good =
      result.disposition == Disposition::passed || result.disposition == Disposition::rejected_as_expected;
  if (is_good && (is_terminal_ || is_quiet_)) return;  // the progress line says enough
  clear_progress();
  std::string line = coloured(result.disposition, name_of(result.disposition)) + " " + printable(name);
  if (!is_good) line += ": " + printable(result.message);
  std::fprintf(stream_, "%s\n", line.c_str());
  for (const std::string& mismatch : mismatch_lines(result.findings)) {
    std::fprintf(stream_, "  %s\n", printable(mismatch).c_str());
  }
  bool is_bad = result.disposition == Disposition::failed || result.disposition == Disposition::error;
  if (is_bad) std::fprintf(stream_, "  repeat: %s\n", printable(repeat_command).c_str());
  std::fflush(stream_);
}

void Console::note(const std::string& line) {
  clear_progress();
  std::fprintf(stream_, "%s\n", printable(line).c_str());
}

void Console::summary(const Counts& counts) {
  clear_progress();
  std::fprintf(stream_, "%lld passed, %lld failed, %lld skipped\n", static_cast<long long>(counts.passed()),
               static_cast<long long>(counts.failed()), static_cast<long long>(counts.skipped()));
  std::fflush(stream_);
}

}  // namespace kvrope::regress
