#include "runner/comparator.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <stdexcept>

namespace kvrope::regress {
namespace {

std::string show_value(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string show_bits(NumberFormat format, uint32_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*x", 2 * bytes_of(format), bits);
  return text;
}

std::string show_element(NumberFormat format, uint32_t bits) {
  return show_value(decode(format, bits)) + " (" + show_bits(format, bits) + ")";
}

std::string show_want(NumberFormat format, const Want& want) {
  std::string text = show_element(format, encode(format, want.value));
  bool has_tolerance = (want.slack != 0 || want.ulps != 0) && std::isfinite(want.value);
  if (!has_tolerance) return text;
  if (is_fp8(format)) return text + " from " + show_value(want.value);
  double tolerance = want.slack + want.ulps * ulp(format, want.value);
  return text + " from " + show_value(want.value) + " +- " + show_value(tolerance);
}

bool is_acceptable_fp8(NumberFormat format, const Want& want, uint32_t got) {
  int low = fp8_ordinal(encode(format, want.value - want.slack));
  int high = fp8_ordinal(encode(format, want.value + want.slack));
  int nearest = fp8_ordinal(encode(format, want.value));
  int ordinal = fp8_ordinal(got);
  return ordinal >= low && ordinal <= high && std::abs(ordinal - nearest) <= 1;
}

}  // namespace

bool is_acceptable(NumberFormat format, const Want& want, uint32_t got) {
  double value = decode(format, got);
  if (std::isnan(want.value) || std::isnan(value)) return std::isnan(want.value) && std::isnan(value);
  bool is_exact = (want.slack == 0 && want.ulps == 0) || std::isinf(want.value);
  if (is_exact) return got == encode(format, want.value);
  if (is_fp8(format)) return is_acceptable_fp8(format, want, got);
  double tolerance = want.slack + want.ulps * ulp(format, want.value);
  if (std::isinf(value)) {  // right where the tolerance reaches what rounds to it
    return got == encode(format, want.value + std::copysign(tolerance, want.value));
  }
  return std::fabs(value - want.value) <= tolerance;
}

void Findings::add(Mismatch mismatch) {
  ++mismatches;
  if (kept.size() < kMostKept) kept.push_back(std::move(mismatch));
}

void Findings::note_error(const std::string& tensor, double ulps) {
  double& largest = largest_error[tensor];
  largest = std::max(largest, ulps);
}

void Findings::append(const Findings& later) {
  mismatches += later.mismatches;
  elements += later.elements;
  for (const Mismatch& mismatch : later.kept) {
    if (kept.size() < kMostKept) kept.push_back(mismatch);
  }
  for (const auto& [tensor, ulps] : later.largest_error) note_error(tensor, ulps);
}

BufferComparison::BufferComparison(std::string name, std::vector<uint8_t> before, std::vector<uint8_t> after,
                                   Before state)
    : name_(std::move(name)),
      before_(std::move(before)),
      after_(std::move(after)),
      written_(after_.size(), 0),
      state_(state) {
  if (before_.size() != after_.size())
    throw std::invalid_argument(name_ + ": the buffer has changed its size");
}

bool BufferComparison::is_right(int64_t byte, NumberFormat format, const Want& want) const {
  return is_acceptable(format, want, load_bits(format, after_.data() + byte));
}

void BufferComparison::mark_written(int64_t byte, int64_t count) {
  std::fill_n(written_.begin() + byte, count, uint8_t{1});
}

bool BufferComparison::is_stray(int64_t byte) const {
  auto i = static_cast<size_t>(byte);
  return written_[i] == 0 && after_[i] != before_[i];
}

int64_t BufferComparison::first_stray(int64_t from) const {
  auto size = static_cast<int64_t>(after_.size());
  while (from < size && !is_stray(from)) ++from;
  return from < size ? from : -1;
}

void BufferComparison::unchanged_elsewhere(Findings& findings) const {
  if (state_ == Before::poisoned) {
    auto clean = std::find_if(before_.begin(), before_.end(), [](uint8_t byte) { return byte != kCanary; });
    if (clean != before_.end()) {
      findings.add({name_, "[byte " + std::to_string(clean - before_.begin()) + "]", std::nullopt,
                    "the canary before the call", "something else: this comparison would prove nothing"});
    }
  }
  auto size = static_cast<int64_t>(after_.size());
  for (int64_t byte = first_stray(), end; byte >= 0; byte = first_stray(end)) {
    end = byte;
    while (end < size && is_stray(end)) ++end;
    std::string where = "[byte " + std::to_string(byte);
    if (end - byte > 1) where += " and " + std::to_string(end - byte - 1) + " after it";
    auto i = static_cast<size_t>(byte);
    findings.add({name_, where + " of " + std::to_string(size) + "]", std::nullopt,
                  "unchanged " + show_bits(NumberFormat::fp8_e4m3, before_[i]),
                  show_bits(NumberFormat::fp8_e4m3, after_[i])});
  }
}

double BufferComparison::error_in_ulps(int64_t byte, NumberFormat format, const Want& want) const {
  uint32_t got = load_bits(format, after_.data() + byte);
  double value = decode(format, got);
  if (!std::isfinite(want.value) || !std::isfinite(value)) return 0;
  if (is_fp8(format)) return std::abs(fp8_ordinal(got) - fp8_ordinal(encode(format, want.value)));
  return std::fabs(value - want.value) / ulp(format, want.value);
}

void BufferComparison::add_mismatch(int64_t byte, NumberFormat format, const Want& want,
                                    const std::string& tensor, const std::string& where,
                                    std::optional<int64_t> slot, Findings& findings) const {
  uint32_t got = load_bits(format, after_.data() + byte);
  findings.add({tensor, where, slot, show_want(format, want), show_element(format, got)});
}

void BufferComparison::add_stray(int64_t byte, NumberFormat format, const std::string& tensor,
                                 const std::string& where, std::optional<int64_t> slot,
                                 Findings& findings) const {
  std::string kept = show_bits(format, load_bits(format, before_.data() + byte));
  findings.add({tensor, where, slot, "unchanged " + kept,
                show_element(format, load_bits(format, after_.data() + byte))});
}

}  // namespace kvrope::regress
