#include "runner/case_worker.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "runner/case_file.h"
#include "runner/fuzz_case.h"
#include "runner/result_json.h"

extern char** environ;

namespace kvrope::regress {
namespace {

[[noreturn]] void throw_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// --- Messages: four bytes of length, then the text.

bool write_all(int socket, const char* data, size_t size) {
  while (size > 0) {
    ssize_t written = send(socket, data, size, MSG_NOSIGNAL);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= static_cast<size_t>(written);
  }
  return true;
}

bool read_all(int socket, char* data, size_t size) {
  while (size > 0) {
    ssize_t got = recv(socket, data, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool write_message(int socket, const std::string& text) {
  auto size = static_cast<uint32_t>(text.size());
  return write_all(socket, reinterpret_cast<const char*>(&size), sizeof size) &&
         write_all(socket, text.data(), size);
}

std::optional<std::string> read_message(int socket) {
  uint32_t size = 0;
  if (!read_all(socket, reinterpret_cast<char*>(&size), sizeof size)) return std::nullopt;
  std::string text(size, '\0');
  if (!read_all(socket, text.data(), size)) return std::nullopt;
  return text;
}

CaseResult run_text(const std::string& text, c10::Device device) {
  try {
    return run_case(parse_case_file(text, "").front(), device, fused_qk_rope_reshape_and_cache);
  } catch (const std::exception& error) {
    return {Disposition::error, error.what(), {}, 0};
  }
}

}  // namespace

CaseWorker::CaseWorker(std::vector<std::string> command, double most_seconds_a_case)
    : command_(std::move(command)), most_time_(most_seconds_a_case) {}

CaseWorker::CaseWorker(CaseWorker&& other) noexcept
    : command_(std::move(other.command_)),
      most_time_(other.most_time_),
      sent_(other.sent_),
      process_(std::exchange(other.process_, -1)),
      socket_(std::exchange(other.socket_, -1)) {}

CaseWorker::~CaseWorker() {
  if (process_ > 0) stop();
}

void CaseWorker::start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw_errno("socketpair");
  if (ends[1] == kWorkerSocket) {  // dup2 to itself would leave it to be closed
    ends[1] = fcntl(ends[1], F_DUPFD_CLOEXEC, kWorkerSocket + 1);
    close(kWorkerSocket);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kWorkerSocket);
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  posix_spawnattr_t attributes;  // a group of its own: Ctrl-C is the other side's to handle
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::vector<char*> arguments;
  for (std::string& argument : command_) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  int status = posix_spawn(&process_, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  socket_ = ends[0];
  if (status == 0) return;
  close(ends[0]);
  process_ = socket_ = -1;
  throw std::system_error(status, std::generic_category(), command_.front());
}

std::string CaseWorker::stop() {
  close(socket_);
  socket_ = -1;
  int status = 0;
  // A process that closed its socket by dying is about to be waited for; one that lives is ended.
  for (int tries = 0; waitpid(process_, &status, WNOHANG) == 0; ++tries) {
    if (tries == 100) kill(process_, SIGKILL);
    usleep(1000);
  }
  process_ = -1;
  if (WIFSIGNALED(status)) {
    int signal = WTERMSIG(status);
    return "signal " + std::to_string(signal) + " (" + strsignal(signal) + ")";
  }
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

void CaseWorker::send(const Json& keys) {
  if (process_ < 0) start();
  sent_ = std::chrono::steady_clock::now();
  write_message(socket_, file_with_case(keys));  // where this fails, receive() says how the process ended
}

bool CaseWorker::is_overdue() const {
  return std::chrono::steady_clock::now() - sent_ > most_time_;
}

bool CaseWorker::wait_for_answer() const {
  for (;;) {
    auto left = std::chrono::duration<double>(sent_ + most_time_ - std::chrono::steady_clock::now());
    pollfd waiting{socket_, POLLIN, 0};
    int ready = poll(&waiting, 1, static_cast<int>(1000 * std::max(0.0, left.count())));
    if (ready > 0) return true;
    if (ready == 0 && is_overdue()) return false;
  }
}

CaseResult CaseWorker::receive() {
  if (!wait_for_answer()) {
    kill(process_, SIGKILL);
    stop();
    auto seconds = static_cast<int64_t>(most_time_.count());
    return {Disposition::error, "the call has not returned within " + std::to_string(seconds) + " s", {}, 0};
  }
  if (std::optional<std::string> answer = read_message(socket_)) {
    CaseResult result = result_from_json(Json::parse(*answer));
    // After most of these a process can make no CUDA call any more: the next case gets a new one.
    if (result.message.find("CUDA error") != std::string::npos) stop();
    return result;
  }
  return {Disposition::error, "the process that ran the case was ended by " + stop(), {}, 0};
}

void serve_cases(int socket, c10::Device device) {
  while (std::optional<std::string> text = read_message(socket)) {
    Json answer = to_json(run_text(*text, device));
    write_message(socket, answer.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

}  // namespace kvrope::regress
