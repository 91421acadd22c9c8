// Compares what a call left in memory with what it should have left there, to the byte.
//
// A BufferComparison holds the bytes of one allocation before and after the call. Each element that the call
// was to write is handed to `element`; `unchanged_elsewhere` then demands that every other byte is as it was.
// Buffers of outputs and caches must have been filled with the canary: where right values lie in memory
// already, finding them after the call would prove nothing.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runner/number_format.h"

namespace kvrope::regress {

constexpr uint8_t kCanary = 0x5a;

// What one element may be. With neither slack nor ulps it is exact: one bit pattern (any NaN for NaN).
struct Want {
  double value;
  double slack = 0;  // absolute
  double ulps = 0;   // of the format, on top; fp8 has none
};

// Whether the element may be that. fp8: a code that rounding a value within the slack may give, at most one
// code away.
bool is_acceptable(NumberFormat format, const Want& want, uint32_t got);

struct Mismatch {
  std::string tensor;
  std::string where;  // "[row 3, head 0, dim 17]"
  std::optional<int64_t> slot;
  std::string want, got;
};

// The mismatches of one case: all are counted, the first few kept.
struct Findings {
  static constexpr size_t kMostKept = 8;
  int64_t mismatches = 0;
  int64_t elements = 0;  // that were compared
  std::vector<Mismatch> kept;
  std::map<std::string, double> largest_error;  // of a tensor, in ulps (fp8: codes), over finite wants

  void add(Mismatch mismatch);
  void note_error(const std::string& tensor, double ulps);
  void append(const Findings& later);
};

class BufferComparison {
 public:
  enum class Before { poisoned, holds_values };

  BufferComparison(std::string name, std::vector<uint8_t> before, std::vector<uint8_t> after, Before state);

  const std::string& name() const { return name_; }

  // What the call left in the element that starts at this byte.
  double value(int64_t byte, NumberFormat format) const {
    return decode(format, load_bits(format, after_.data() + byte));
  }

  // The element that starts at this byte was to be written. Says whether it is right; counts nothing.
  bool is_right(int64_t byte, NumberFormat format, const Want& want) const;

  // The same, and takes its bytes for written and adds a finding when it is wrong. `where` makes the text of
  // the place.
  template <class Where>
  void element(int64_t byte, NumberFormat format, const Want& want, const std::string& tensor, Where where,
               std::optional<int64_t> slot, Findings& findings) {
    ++findings.elements;
    mark_written(byte, bytes_of(format));
    findings.note_error(tensor, error_in_ulps(byte, format, want));
    if (!is_right(byte, format, want)) add_mismatch(byte, format, want, tensor, where(), slot, findings);
  }

  // The element was not to be written. Adds a finding when it was, and takes its bytes off the strays.
  template <class Where>
  void unchanged_element(int64_t byte, NumberFormat format, const std::string& tensor, Where where,
                         std::optional<int64_t> slot, Findings& findings) {
    if (load_bits(format, after_.data() + byte) == load_bits(format, before_.data() + byte)) return;
    add_stray(byte, format, tensor, where(), slot, findings);
    mark_written(byte, bytes_of(format));
  }

  // Bytes that the call may have changed.
  void mark_written(int64_t byte, int64_t count);

  // The first byte at or after `from` that changed and was not to be written, or -1.
  int64_t first_stray(int64_t from = 0) const;

  // Adds a finding for each run of stray bytes, and for a poisoned buffer that was not poisoned.
  void unchanged_elsewhere(Findings& findings) const;

 private:
  bool is_stray(int64_t byte) const;
  double error_in_ulps(int64_t byte, NumberFormat format, const Want& want) const;
  void add_mismatch(int64_t byte, NumberFormat format, const Want& want, const std::string& tensor,
                    const std::string& where, std::optional<int64_t> slot, Findings& findings) const;
  void add_stray(int64_t byte, NumberFormat format, const std::string& tensor, const std::string& where,
                 std::optional<int64_t> slot, Findings& findings) const;

  std::string name_;
  std::vector<uint8_t> before_, after_;
  std::vector<uint8_t> written_;  // a byte each: several threads mark theirs at once
  Before state_;
};

}  // namespace kvrope::regress
