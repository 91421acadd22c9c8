#include "fault.h"
#include "text.h"

#include <c10/util/Exception.h>

namespace kvrope {

#ifdef KVROPE_WITH_CUDA
std::optional<Fault> cuda_last_fault(c10::Device device);
void cuda_check(c10::Device device);
#else
static std::optional<Fault> cuda_last_fault(c10::Device device) {
  TORCH_CHECK_VALUE(false,
                    text("kvrope: expected a CPU device, got ", device, ": this build has no CUDA kernels"));
}
static void cuda_check(c10::Device device) {
  cuda_last_fault(device);
}
#endif

std::optional<Fault> last_fault(c10::Device device) {
  if (device.is_cpu()) return std::nullopt;
  TORCH_CHECK_VALUE(device.is_cuda(), text("kvrope: expected a CPU or CUDA device, got ", device));
  return cuda_last_fault(device);
}

void check(c10::Device device) {
  if (device.is_cpu()) return;
  TORCH_CHECK_VALUE(device.is_cuda(), text("kvrope: expected a CPU or CUDA device, got ", device));
  cuda_check(device);
}

}  // namespace kvrope
