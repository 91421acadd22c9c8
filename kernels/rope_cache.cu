#include "rope_cache.h"

#include <atomic>

#include "launch_plan.h"

namespace kvrope {

template <typename T, typename CacheT>
cudaError_t launch_with_types(const RopeCacheParams&, const LaunchPlan&, cudaStream_t);  // instantiations/

namespace {

__device__ FaultRecord fault_record;

template <typename T>
cudaError_t launch_with_dtype(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  if (!params.has_cache || params.cache_dtype == params.dtype)
    return launch_with_types<T, T>(params, plan, stream);
  switch (params.cache_dtype) {
    case DType::fp8_e4m3:
      return launch_with_types<T, fp8_e4m3>(params, plan, stream);
    case DType::fp8_e5m2:
      return launch_with_types<T, fp8_e5m2>(params, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

// Programmatic dependent launch needs compute capability 9.0. Asked once a device.
bool device_has_pdl() {
  constexpr int kMaxDevices = 64;
  static std::atomic<int> major_of[kMaxDevices];
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= kMaxDevices) return false;
  if (major_of[device] == 0) {
    int major = 0;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
      return false;
    major_of[device] = major;
  }
  return major_of[device] >= 9;
}

}  // namespace

cudaError_t launch_rope_cache(const RopeCacheParams& params, cudaStream_t stream, bool use_pdl) {
  if (params.num_kv_rows == 0) return cudaSuccess;
  LaunchPlan plan = plan_launch(params);
  plan.use_pdl = use_pdl && device_has_pdl();
  switch (params.dtype) {
    case DType::fp32:
      return launch_with_dtype<float>(params, plan, stream);
    case DType::fp16:
      return launch_with_dtype<fp16>(params, plan, stream);
    case DType::bf16:
      return launch_with_dtype<bf16>(params, plan, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

cudaError_t fault_record_address(FaultRecord** record) {
  return cudaGetSymbolAddress(reinterpret_cast<void**>(record), fault_record);
}

}  // namespace kvrope
