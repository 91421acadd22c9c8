#include "engine_step/workload.h"

namespace kvrope::engine {

Workload::Workload(int64_t seed, int64_t vocabulary, int64_t max_length)
    : random_(seed, "workload"), vocabulary_(vocabulary), max_length_(max_length) {
  for (int i = 0; i < 5; ++i) beginnings_.push_back(draw_tokens(random_.below(max_length / 2)));
}

std::vector<int64_t> Workload::draw_tokens(int64_t count) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(random_.below(vocabulary_));
  return tokens;
}

std::vector<RequestPtr> Workload::arrivals() {
  constexpr double kRates[] = {0.9, 0.2, 0.05, 0};  // the first steps are busy
  if (step_ % 64 == 0) rate_ = kRates[step_ == 0 ? 0 : random_.below(4)];
  ++step_;
  std::vector<RequestPtr> requests;
  while (requests.size() < 4 && random_.uniform() < rate_) requests.push_back(draw());
  return requests;
}

RequestPtr Workload::draw() {
  auto request = std::make_shared<Request>();
  request->id = next_id_++;
  if (random_.below(3) > 0) {  // the whole of a shared beginning, or a part
    const auto& shared = beginnings_[static_cast<size_t>(random_.below(5))];
    const auto size = static_cast<int64_t>(shared.size());
    const int64_t count = random_.below(2) > 0 ? size : random_.below(size + 1);
    request->tokens.assign(shared.begin(), shared.begin() + count);
  }
  const std::vector<int64_t> own = draw_tokens(1 + random_.below(max_length_ / 4));
  request->tokens.insert(request->tokens.end(), own.begin(), own.end());
  request->num_prompt = request->num_known = request->length();
  const std::vector<int64_t> answer = draw_tokens(random_.below(max_length_ - request->length() + 1));
  request->tokens.insert(request->tokens.end(), answer.begin(), answer.end());
  return request;
}

}  // namespace kvrope::engine
