// Ctrl-C and the request to terminate, so that a run can end with what it has. The first one is noted; a
// second, more than a second later, ends the process at once.
#pragma once

namespace kvrope::regress {

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool has_come();
  // 128 and the signal's number, as shells have it: 130 for Ctrl-C, 143 for the request to terminate.
  static int exit_code();
};

}  // namespace kvrope::regress
