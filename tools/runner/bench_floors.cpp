#include "runner/bench_floors.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#ifdef KVROPE_WITH_CUDA
#include "runner/cuda_floors.h"
#endif

namespace kvrope::regress {
namespace {

Floor cpu_memcpy(int64_t bytes, int64_t sets) {
  int64_t half = std::max<int64_t>(1, bytes / 2);
  std::vector<at::Tensor> from, to;
  for (int64_t i = 0; i < sets; ++i) {
    from.push_back(at::ones({half}, at::kByte));
    to.push_back(at::zeros({half}, at::kByte));
  }
  Call call = [=](int64_t i) {
    auto set = static_cast<size_t>(i % sets);
    const auto* source = static_cast<const uint8_t*>(from[set].const_data_ptr());
    auto* target = static_cast<uint8_t*>(to[set].mutable_data_ptr());
    constexpr int64_t kBytesWorthAThread = 1 << 16;
    at::parallel_for(0, half, kBytesWorthAThread, [&](int64_t begin, int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
    });
  };
  return {"memcpy", 2 * half, call};
}

}  // namespace

std::vector<Floor> make_floors([[maybe_unused]] const CaseSpec& spec, [[maybe_unused]] const RowPlan& plan,
                               const CallBytes& bytes, [[maybe_unused]] c10::Device device,
                               const CallTiming& timing) {
#ifdef KVROPE_WITH_CUDA
  if (device.is_cuda()) return make_cuda_floors(spec, plan, bytes, device, timing);
#endif
  return {cpu_memcpy(bytes.all(), timing.group.sets)};
}

}  // namespace kvrope::regress
