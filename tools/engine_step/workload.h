// Requests that arrive at random, some of them with a beginning that others have too.
#pragma once

#include <cstdint>
#include <vector>

#include "engine_step/request.h"
#include "runner/random.h"

namespace kvrope::engine {

class Workload {
 public:
  Workload(int64_t seed, int64_t vocabulary, int64_t max_length);

  // Those that arrive in the next step: none, or a few. There are busy times and quiet times.
  std::vector<RequestPtr> arrivals();

 private:
  RequestPtr draw();
  std::vector<int64_t> draw_tokens(int64_t count);

  regress::Random random_;
  int64_t vocabulary_, max_length_;
  std::vector<std::vector<int64_t>> beginnings_;
  int64_t step_ = 0, next_id_ = 0;
  double rate_ = 0;  // chance of an arrival
};

}  // namespace kvrope::engine
