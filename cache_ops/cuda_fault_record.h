#pragma once

#include <c10/core/Device.h>

#include "fault_record.h"

namespace kvrope {

// Where the kernel records faults of a device: a static variable of its module, found once and allowed at any
// time, also for the first time under graph capture.
FaultRecord* cuda_fault_record(c10::DeviceIndex device);

}  // namespace kvrope
