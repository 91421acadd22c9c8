#include "runner/interrupt.h"

#include <signal.h>
#include <time.h>

#include <initializer_list>

namespace kvrope::regress {
namespace {

volatile sig_atomic_t received = 0;
volatile time_t received_at = 0;

void use_handler(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

// Programs such as timeout send a signal to the process and to its group: twice in a moment is once.
void receive(int signal) {
  if (received == 0) {
    received = signal;
    received_at = time(nullptr);
  } else if (time(nullptr) - received_at > 1) {
    use_handler(SIG_DFL);
    raise(signal);
  }
}

}  // namespace

Interrupt::Interrupt() {
  use_handler(receive);
}

Interrupt::~Interrupt() {
  use_handler(SIG_DFL);
}

bool Interrupt::has_come() {
  return received != 0;
}

int Interrupt::exit_code() {
  return 128 + received;
}

}  // namespace kvrope::regress
