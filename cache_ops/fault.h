// Rows that a CUDA launch could not serve: a slot or a position out of range, known only on the device.
// Recording costs nothing when there is none, survives graph replay and leaves the context usable.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>

namespace kvrope {

struct Fault {
  std::string kind;      // "position_out_of_range", "slot_out_of_range" or "window_slot_out_of_range"
  std::string argument;  // the argument that held the value: "pos", "slot_mapping" or "swa_slot_mapping"
  int64_t row;           // index of the row in that argument's mapping: the token
  int64_t value;         // the effective position or the slot
};

// One bad row of the first faulting launch on a device since the last check, or nothing. Waits for the
// current stream of the device; a launch on another stream that has not ended shows later. CPU devices never
// have one: there the call itself raises. Throws ValueError while this thread captures a graph; captures of
// other threads go on undisturbed. Several threads may launch, ask and clear at once.
std::optional<Fault> last_fault(c10::Device device);

// Throws c10::IndexError that describes last_fault(device) and clears it; returns when there is none.
void check(c10::Device device);

}  // namespace kvrope
