// Cases run in a process of their own: what a case may do to its process, a crash or an endless loop, is a
// result and not the end of the run.
#pragma once

#include <c10/core/Device.h>
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "runner/json_document.h"
#include "runner/run_case.h"

namespace kvrope::regress {

// The socket that a worker is started with.
constexpr int kWorkerSocket = 3;

class CaseWorker {
 public:
  // The program of the worker and its arguments. It is started with the first case, and again after a crash.
  CaseWorker(std::vector<std::string> command, double most_seconds_a_case);
  ~CaseWorker();
  CaseWorker(CaseWorker&& other) noexcept;
  CaseWorker(const CaseWorker&) = delete;
  CaseWorker& operator=(const CaseWorker&) = delete;
  CaseWorker& operator=(CaseWorker&&) = delete;

  void send(const Json& keys);
  int socket() const { return socket_; }  // readable when an answer is in; -1 before the first case
  bool is_overdue() const;
  // Waits for the answer. A worker that dies or is overdue gives an error, and so may CUDA: then the next
  // case gets a new process too.
  CaseResult receive();

  CaseResult run(const Json& keys) {
    send(keys);
    return receive();
  }

 private:
  void start();
  std::string stop();  // how the process ended, if it was not stopped here
  bool wait_for_answer() const;

  std::vector<std::string> command_;
  std::chrono::duration<double> most_time_;
  std::chrono::steady_clock::time_point sent_;
  pid_t process_ = -1;
  int socket_ = -1;
};

// The worker's side: runs what comes in until the other side closes.
void serve_cases(int socket, c10::Device device);

}  // namespace kvrope::regress
