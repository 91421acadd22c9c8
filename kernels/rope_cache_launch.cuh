// From a plan to the launch of one instance of the kernel.
#pragma once

#include "instances.cuh"
#include "launch_plan.h"
#include "rope_cache.cuh"

namespace kvrope {

template <typename T, typename CacheT, int kVec, bool kIsNeox, typename Params>
cudaError_t launch_kernel(const Params& params, const LaunchPlan& plan, int64_t num_kv_rows, bool has_cache,
                          cudaStream_t stream) {
  cudaLaunchAttribute pdl = {};
  pdl.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  pdl.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(plan.grid_x(num_kv_rows), plan.grid_y(has_cache));
  config.blockDim = dim3(plan.tokens_per_block, plan.threads_per_row, plan.rows_at_once);
  config.dynamicSmemBytes = plan.values_are_tiled ? kTileTokens * plan.tile_pitch * sizeof(CacheT) : 0;
  config.stream = stream;
  config.attrs = &pdl;
  config.numAttrs = plan.use_pdl ? 1 : 0;
  return cudaLaunchKernelEx(&config, rope_cache_kernel<Params, T, CacheT, kVec, kIsNeox>, params, plan);
}

template <typename T, typename CacheT, int kVec, bool kIsNeox>
cudaError_t launch_instance(const RopeCacheParams& p, const LaunchPlan& plan, cudaStream_t stream) {
  return with_params_of_form<T, kVec, kIsNeox>(p, plan.form, [&](const auto& params) {
    return launch_kernel<T, CacheT, kVec, kIsNeox>(params, plan, p.num_kv_rows, p.has_cache, stream);
  });
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
