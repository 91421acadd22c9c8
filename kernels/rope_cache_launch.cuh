// From a plan to the launch of one instance of the kernel.
#pragma once

#include "compact_params.h"
#include "launch_plan.h"
#include "rope_cache.cuh"

namespace kvrope {

template <typename T, typename CacheT, int kVec, bool kIsNeox>
cudaError_t launch_instance(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  cudaLaunchAttribute pdl = {};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(params.num_kv_rows), plan.blocks_by_row + plan.blocks_by_token);
  config.blockDim = dim3(plan.threads_per_row, plan.rows_per_block);
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = plan.use_pdl ? 1 : 0;
  if constexpr (kVec == 1) {
    return cudaLaunchKernelEx(&config, rope_cache_kernel<T, CacheT, kVec, kIsNeox>, params, plan);
  } else {
    return cudaLaunchKernelEx(&config, rope_cache_kernel<T, CacheT, kVec, kIsNeox>, make_compact(params),
                              plan);
  }
}

template <typename T, typename CacheT, int kVec>
cudaError_t launch_with_width(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  return params.is_neox ? launch_instance<T, CacheT, kVec, true>(params, plan, stream)
                        : launch_instance<T, CacheT, kVec, false>(params, plan, stream);
}

template <typename T, typename CacheT>
cudaError_t launch_with_types(const RopeCacheParams& params, const LaunchPlan& plan, cudaStream_t stream) {
  switch (plan.vector_width) {
    case 8:
      if constexpr (sizeof(T) == 2) return launch_with_width<T, CacheT, 8>(params, plan, stream);
      return cudaErrorInvalidValue;
    case 4:
      return launch_with_width<T, CacheT, 4>(params, plan, stream);
    case 2:
      return launch_with_width<T, CacheT, 2>(params, plan, stream);
    default:
      return launch_with_width<T, CacheT, 1>(params, plan, stream);
  }
}

}  // namespace kvrope
