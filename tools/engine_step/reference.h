// What attention gives without any cache: the whole sequence at once, from plain LibTorch operations on the
// CPU. Queries, keys and values are rotated, rounded and quantised as the contract says, so that the caches
// of the engine must hold the same values; the sums of attention are in double precision.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_step/model.h"

namespace kvrope::engine {

class Reference {
 public:
  explicit Reference(const Model& model);

  // [layer][position][head][dim] of a sequence.
  std::vector<float> outputs(const std::vector<int64_t>& tokens) const;

 private:
  Model model_;  // on the CPU
};

// Largest difference from an expected output that the order of fp32 sums accounts for, at any dtype.
constexpr double kTolerance = 1e-5;

}  // namespace kvrope::engine
