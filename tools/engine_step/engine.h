// The loop: schedule, run, compare with the reference, commit.
#pragma once

#include <functional>
#include <memory>

#include "engine_step/forward.h"
#include "engine_step/model.h"
#include "engine_step/one_thread.h"
#include "engine_step/reference.h"
#include "engine_step/scheduler.h"
#include "engine_step/step_rows.h"

namespace kvrope::engine {

class DecodeGraphs;

class Engine {
 public:
  Engine(const SchedulerConfig& scheduler, const ModelConfig& model, int64_t seed, c10::Device device);
  ~Engine();

  void submit(const RequestPtr& request);
  // False when no request could run.
  bool step();
  // Counts the blocks anew; whatever does not add up is a complaint.
  void audit();

  // Changes the numbers of a step before they go to the device: faults that tests and --inject plant.
  std::function<void(StepRows&)> tamper;

  Scheduler& scheduler() { return scheduler_; }
  Model& model() { return model_; }
  const Statistics& statistics() { return scheduler_.statistics(); }

 private:
  at::Tensor run(StepRows& rows);
  at::Tensor run_forward(const StepRows& rows);
  void drop_bad_requests(StepRows& rows);
  void compare(const StepRows& rows, const at::Tensor& outputs);
  void count(const StepRows& rows);
  void complain(const std::vector<std::string>& complaints);

  OneThread one_thread_;
  Scheduler scheduler_;
  Model model_;
  Reference reference_;
  StepInputs inputs_;
  std::unique_ptr<DecodeGraphs> graphs_;  // on CUDA
};

}  // namespace kvrope::engine
