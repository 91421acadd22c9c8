// From a plan to the launch of one instance of the kernel.
#pragma once

#include "launch_plan.h"
#include "rope_cache.cuh"

namespace kvrope {

template <typename T, typename CacheT, int kVec>
cudaError_t launch_instance(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  cudaLaunchAttribute pdl = {};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.num_rows), plan.blocks_per_token);
  config.blockDim = dim3(plan.threads_per_row, plan.rows_per_block);
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = plan.use_pdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, rope_cache_kernel<T, CacheT, kVec>, params);
}

template <typename T, typename CacheT>
cudaError_t launch_with_types(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  switch (plan.vector_width) {
    case 8:
      if constexpr (sizeof(T) == 2) return launch_instance<T, CacheT, 8>(params, plan, stream);
      return cudaErrorInvalidValue;
    case 4:
      return launch_instance<T, CacheT, 4>(params, plan, stream);
    case 2:
      return launch_instance<T, CacheT, 2>(params, plan, stream);
    default:
      return launch_instance<T, CacheT, 1>(params, plan, stream);
  }
}

}  // namespace kvrope
