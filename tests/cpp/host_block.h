// The threads of a block, one after the other. One that must wait for others (a barrier, an exchange between
// lanes of its warp) is left where it is, on a stack of its own, until all of them have come. For
// host_cuda.h, which has the built-in variables.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <stdexcept>
#include <vector>

class HostBlock {
 public:
  void run(const std::function<void()>& kernel) {
    kernel_ = &kernel;
    num_threads_ = num_left_ = blockDim.x * blockDim.y * blockDim.z;
    next_ = 0;
    block_ = {};
    warps_.assign((num_threads_ + kLanes - 1) / kLanes, {});
    for (size_t i = 0; i < num_threads_; ++i) ++warps_[i / kLanes].num_left;
    size_t num_stacks = 0;
    while (next_ < num_threads_) start(num_stacks++);
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (size_t i = 0; i < num_stacks; ++i) {
        if (stacks_[i]->meeting == nullptr || !stacks_[i]->can_go_on()) continue;
        goes_on = true;
        go_on(i);
      }
    }
    if (num_left_ > 0)
      throw std::logic_error("threads wait for others that have returned, or wait elsewhere");
  }

  // Whether any thread of the block that has not returned comes with a vote.
  bool wait_for_block(bool vote) {
    block_.vote |= vote;
    ++block_.num_there;
    if (block_.num_there == num_left_) block_.open();
    wait_at(block_);
    return block_.result;
  }

  // Whether any lane of the warp that has not returned comes with a vote. All lanes come here, or return.
  bool wait_for_warp(bool vote) {
    Warp& warp = warps_[thread() / kLanes];
    warp.meeting.vote |= vote;
    ++warp.meeting.num_there;
    warp.open_if_complete();
    wait_at(warp.meeting);
    return warp.meeting.result;
  }

  // The value of the lane whose number differs by these bits, NaN if it has returned. All lanes of the warp
  // come here, or return.
  float exchange(float value, int distance) {
    const unsigned lane = thread() % kLanes;
    Warp& warp = warps_[thread() / kLanes];
    warp.values[lane] = value;
    ++warp.meeting.num_there;
    warp.open_if_complete();
    wait_at(warp.meeting);
    return warp.results[lane ^ static_cast<unsigned>(distance)];
  }

 private:
  static constexpr unsigned kLanes = 32;

  static unsigned thread() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }

  struct Meeting {
    size_t num_there = 0, num_opened = 0;
    bool vote = false, result = false;

    void open() {
      result = vote;
      vote = false;
      num_there = 0;
      ++num_opened;
    }
  };

  struct Warp {
    Warp() { forget_values(); }

    void forget_values() {
      std::fill(std::begin(values), std::end(values), std::numeric_limits<float>::quiet_NaN());
    }

    void open_if_complete() {
      if (meeting.num_there == 0 || meeting.num_there < num_left) return;
      std::copy(std::begin(values), std::end(values), results);
      forget_values();
      meeting.open();
    }

    size_t num_left = 0;  // lanes that have not returned
    Meeting meeting;
    float values[kLanes], results[kLanes] = {};
  };

  struct Stack {
    static constexpr size_t kBytes = size_t{1} << 18;
    ucontext_t context;
    void* place[5];  // where its thread was left
    std::unique_ptr<char[]> memory{new char[kBytes]};
    const Meeting* meeting = nullptr;  // that its thread waits for; null when it is free
    size_t num_opened = 0;             // before it came

    bool can_go_on() const { return meeting->num_opened > num_opened; }
  };

  // A meeting that has just been opened by the last to come lets that one pass.
  void wait_at(const Meeting& meeting) {
    if (meeting.num_there == 0) return;
    Stack& stack = *stacks_[running_];
    stack.meeting = &meeting;
    stack.num_opened = meeting.num_opened;
    const Index3 thread = threadIdx;
    leave(stack);
    threadIdx = thread;
    stack.meeting = nullptr;
  }

  void start(size_t stack) {
    if (stack < stacks_.size()) return go_on(stack);
    stacks_.push_back(std::make_unique<Stack>());
    ucontext_t& context = stacks_[stack]->context;
    getcontext(&context);
    context.uc_stack.ss_sp = stacks_[stack]->memory.get();
    context.uc_stack.ss_size = Stack::kBytes;
    makecontext(&context, run_threads, 0);
    running_ = stack;
    if (__builtin_setjmp(scheduler_) == 0) setcontext(&context);
  }

  // Jumps: a change of contexts would ask the system each time. They are functions of their own: the compiler
  // forgets where to come back to in one that both sets a place and jumps. It is told that memory is another
  // when they are back.
  [[noreturn]] __attribute__((noinline)) static void jump(void** place) { __builtin_longjmp(place, 1); }
  __attribute__((noinline)) void go_on(size_t stack) {
    running_ = stack;
    if (__builtin_setjmp(scheduler_) == 0) jump(stacks_[stack]->place);
    asm volatile("" ::: "memory");
  }
  __attribute__((noinline)) void leave(Stack& stack) {
    if (__builtin_setjmp(stack.place) == 0) jump(scheduler_);
    asm volatile("" ::: "memory");
  }

  // Threads that need not wait share a stack.
  static void run_threads();

  void run_next_threads() {
    for (;; leave(*stacks_[running_])) {
      while (next_ < num_threads_) run_next_thread();
    }
  }

  void run_next_thread() {
    const auto thread = static_cast<unsigned>(next_++);
    threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y};
    (*kernel_)();
    --num_left_;
    if (block_.num_there > 0 && block_.num_there == num_left_) block_.open();
    Warp& warp = warps_[thread / kLanes];
    --warp.num_left;
    warp.open_if_complete();
  }

  const std::function<void()>* kernel_ = nullptr;
  size_t num_threads_ = 0, num_left_ = 0, next_ = 0;
  Meeting block_;
  std::vector<Warp> warps_;
  std::vector<std::unique_ptr<Stack>> stacks_;
  size_t running_ = 0;
  void* scheduler_[5];
};
inline thread_local HostBlock host_block;

inline void HostBlock::run_threads() {
  host_block.run_next_threads();
}
