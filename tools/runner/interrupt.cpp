#include "runner/interrupt.h"

#include <signal.h>

#include <initializer_list>

namespace kvrope::regress {
namespace {

volatile sig_atomic_t received = 0;

void handle(int handler_flags, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = handler_flags;
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

}  // namespace

Interrupt::Interrupt() {
  handle(static_cast<int>(SA_RESETHAND | SA_RESTART), [](int signal) { received = signal; });
}

Interrupt::~Interrupt() {
  handle(0, SIG_DFL);
}

bool Interrupt::has_come() {
  return received != 0;
}

int Interrupt::exit_code() {
  return 128 + received;
}

}  // namespace kvrope::regress
