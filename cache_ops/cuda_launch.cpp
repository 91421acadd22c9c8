#include "cuda_launch.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <string_view>

#include "cuda_capture.h"
#include "cuda_fault_record.h"
#include "fault.h"
#include "rope_cache.h"

namespace kvrope {
namespace {

bool environment_says(const char* name, const char* value) {
  const char* actual = std::getenv(name);
  return actual != nullptr && std::string_view(actual) == value;
}

}  // namespace

void run_on_cuda(RopeCacheParams params, c10::Device device) {
  static const bool use_pdl = !environment_says("KVROPE_PDL", "0");
  static const bool check_every_call = environment_says("KVROPE_CHECK", "1");

  const c10::cuda::CUDAGuard guard(device);
  const c10::cuda::CUDAStream stream = c10::cuda::getCurrentCUDAStream();
  params.fault_record = cuda_fault_record(device.index());
  C10_CUDA_CHECK(launch_rope_cache(params, stream, use_pdl));
  if (check_every_call && !is_capturing(device)) check(device);
}

}  // namespace kvrope
