// Decode steps as CUDA graphs, one for each padded number of rows, captured when it is first met.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>

namespace kvrope::engine {

class DecodeGraphs {
 public:
  DecodeGraphs();
  ~DecodeGraphs();

  // What `forward(size)` gives, from a replay. Its inputs must stay where they are.
  at::Tensor run(int64_t size, const std::function<at::Tensor(int64_t)>& forward);
  int64_t num_captured() const { return static_cast<int64_t>(graphs_.size()); }

 private:
  struct Graph;
  std::map<int64_t, std::unique_ptr<Graph>> graphs_;
};

}  // namespace kvrope::engine
