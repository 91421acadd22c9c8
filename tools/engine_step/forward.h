// The device's part of a step. This is how an engine calls the operation.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine_step/model.h"
#include "engine_step/step_rows.h"

namespace kvrope::engine {

// The step's numbers on the device. They stay where they are from step to step, as captured graphs require.
class StepInputs {
 public:
  StepInputs(const SchedulerConfig& config, c10::Device device);

  void copy_from(const StepRows& rows);

  // The first `size` rows.
  at::Tensor tokens(int64_t size) const { return tokens_.narrow(0, 0, size); }
  at::Tensor positions(int64_t size) const { return positions_.narrow(0, 0, size); }
  at::Tensor slots(int64_t size) const { return slots_.narrow(0, 0, size); }
  at::Tensor tables(int64_t size) const { return tables_.narrow(0, 0, size); }
  const at::Tensor& window_table() const { return window_table_; }

 private:
  at::Tensor tokens_, positions_, slots_, tables_, window_table_;
};

// Attention of `size` rows in every layer: (layers, size, QH, D) fp32 on the model's device.
at::Tensor forward(const Model& model, const StepInputs& inputs, int64_t size);

}  // namespace kvrope::engine
