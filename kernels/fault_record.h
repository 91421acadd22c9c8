// The first bad row that a kernel met on a device: written by the kernel, read and cleared by the host.
#pragma once

#include <cstdint>

namespace kvrope {

enum class FaultKind : int32_t { none, position_out_of_range, slot_out_of_range, window_slot_out_of_range };

struct FaultRecord {
  int32_t is_claimed;  // the first writer wins until the host clears the record
  FaultKind kind;      // written last
  int64_t row;         // of pos or slot_mapping
  int64_t value;       // the position or slot that did not fit
};

}  // namespace kvrope
