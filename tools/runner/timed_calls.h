// A group of calls that can be timed again and again.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "runner/l2_state.h"

namespace kvrope::regress {

// Enqueues call i on the current stream, or makes it on the CPU.
using Call = std::function<void(int64_t i)>;

class TimedCalls {
 public:
  virtual ~TimedCalls() = default;
  virtual double microseconds() = 0;  // a call, measured once more
};

struct CallTiming {
  CallGroup group;
  L2State l2 = L2State::warm;
  bool without_pdl = false;     // CUDA: launches wait for each other
  double planted_slowdown = 0;  // 0.1 makes a tenth more calls than the time is divided by
};

// CUDA: the calls become one graph, and events around its replay are read, so that the host has no part in
// the time. CPU: wall clock over as many of the calls as take two milliseconds, all in turn.
std::unique_ptr<TimedCalls> prepare_calls(c10::Device device, const CallTiming& timing, const Call& call);

// Wall clock of enqueueing one call, the median of many: what an eager call costs its thread.
double host_microseconds(c10::Device device, const Call& call);

// Bytes that buffers may take: a part of what is free.
int64_t spare_memory(c10::Device device);

}  // namespace kvrope::regress
