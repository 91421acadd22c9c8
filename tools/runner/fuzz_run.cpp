#include "runner/fuzz_run.h"

#include <poll.h>

#include <cctype>
#include <cstdio>

#include "runner/interrupt.h"
#include "runner/shrink_case.h"

namespace kvrope::regress {
namespace {

constexpr double kMostSecondsACase = 120;
constexpr int kMostShrinkRuns = 500;
constexpr double kMostShrinkSeconds = 60;

bool is_failure(const CaseResult& result) {
  return result.disposition == Disposition::failed || result.disposition == Disposition::error;
}

// What makes two failures the same: the message without its numbers, and where the first mismatch was.
std::string kind_of(const CaseResult& result) {
  std::string kind = name_of(result.disposition);
  for (char letter : " " + result.message) {
    bool is_digit = std::isdigit(static_cast<unsigned char>(letter));
    if (!is_digit) kind += letter;
  }
  if (!result.findings.kept.empty()) kind += " " + result.findings.kept.front().tensor;
  return kind;
}

}  // namespace

FuzzRun::FuzzRun(FuzzPlan plan, FuzzEvents events) : plan_(std::move(plan)), events_(std::move(events)) {
  for (int i = 0; i < plan_.workers; ++i) workers_.emplace_back(plan_.worker, kMostSecondsACase);
  running_.assign(workers_.size(), -1);
}

void FuzzRun::run() {
  for (;;) {
    start_cases();
    bool is_idle = true;
    for (int64_t number : running_) is_idle = is_idle && number < 0;
    if (is_idle) return;
    collect_answers();
    settle();
  }
}

bool FuzzRun::may_start_another() const {
  if (Interrupt::has_come() || next_ >= plan_.cases || counts_.failed() >= plan_.most_failures) return false;
  return plan_.seconds == 0 || seconds_gone() < plan_.seconds;
}

void FuzzRun::start_cases() {
  for (size_t i = 0; i < workers_.size() && may_start_another(); ++i) {
    if (running_[i] >= 0) continue;
    running_[i] = next_++;
    workers_[i].send(make_fuzz_case(plan_.seed, plan_.first + running_[i], plan_.most_tokens).keys);
  }
}

void FuzzRun::collect_answers() {
  std::vector<pollfd> waiting;
  for (size_t i = 0; i < workers_.size(); ++i) {
    waiting.push_back({running_[i] >= 0 ? workers_[i].socket() : -1, POLLIN, 0});
  }
  poll(waiting.data(), waiting.size(), 200);
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (running_[i] < 0 || (waiting[i].revents == 0 && !workers_[i].is_overdue())) continue;
    ready_[running_[i]] = workers_[i].receive();
    running_[i] = -1;
  }
}

// Takes the results in the order of the cases.
void FuzzRun::settle() {
  for (auto next = ready_.begin(); next != ready_.end() && next->first == settled_; next = ready_.begin()) {
    CaseResult result = std::move(next->second);
    ready_.erase(next);
    if (counts_.failed() < plan_.most_failures) {  // what was running beyond the last failure is not told
      ++counts_.of[result.disposition];
      if (is_failure(result)) {
        settle_failure(make_fuzz_case(plan_.seed, plan_.first + settled_, plan_.most_tokens),
                       std::move(result));
      }
    }
    ++settled_;
  }
  events_.progress(counts_.all(), counts_.failed());
}

void FuzzRun::settle_failure(const FuzzCase& failing, CaseResult result) {
  CaseWorker worker(plan_.worker, kMostSecondsACase);
  std::string kind = kind_of(result);
  double until = seconds_gone() + kMostShrinkSeconds;
  Json shrunk = shrink_case(
      failing,
      [&](const Json& candidate) {
        if (Interrupt::has_come() || seconds_gone() > until) return false;
        CaseResult attempt = worker.run(candidate);
        if (!is_failure(attempt) || kind_of(attempt) != kind) return false;
        result = std::move(attempt);
        return true;
      },
      kMostShrinkRuns);
  events_.failure(failing.keys, shrunk, result);
}

std::string FuzzRun::summary() const {
  auto count = [&](Disposition disposition) {
    auto found = counts_.of.find(disposition);
    return std::to_string(found == counts_.of.end() ? 0 : found->second);
  };
  char rate[64];
  double seconds = seconds_gone();
  std::snprintf(rate, sizeof rate, "%.1f s, %.0f/s", seconds, static_cast<double>(counts_.all()) / seconds);
  return "seed " + std::to_string(plan_.seed) + ": " + std::to_string(counts_.all()) + " cases in " + rate +
         ": " + count(Disposition::passed) + " passed, " + count(Disposition::rejected_as_expected) +
         " rejected as expected";
}

}  // namespace kvrope::regress
