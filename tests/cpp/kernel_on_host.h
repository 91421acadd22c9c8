// The kernel itself, run on the host one thread after the other (host_cuda.h): dtypes and formats enough for
// each kind of instance. What only a device has (its conversion instructions, warps that run at the same
// time) the CUDA tests see.
#pragma once

#include "host_cuda.h"
#include "instances.cuh"
#include "launch_plan.h"
#include "rope_cache.cuh"

namespace kvrope {

template <typename T, typename CacheT, int kVec, bool kIsNeox, typename Params>
void run_blocks(const Params& p, const LaunchPlan& plan, const RopeCacheParams& params) {
  gridDim = {static_cast<unsigned>(plan.grid_x(params.num_kv_rows)),
             static_cast<unsigned>(plan.grid_y(params.has_cache)), 1};
  blockDim = {static_cast<unsigned>(plan.tokens_per_block), static_cast<unsigned>(plan.threads_per_row),
              static_cast<unsigned>(plan.rows_at_once)};
  for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
    // Backwards: of rows with one slot the last must not win by its turn.
    for (unsigned x = gridDim.x; x-- > 0;) {
      blockIdx.x = x;
      host_block.run([&] { rope_cache_kernel<Params, T, CacheT, kVec, kIsNeox>(p, plan); });
    }
  }
}

template <typename T, typename CacheT, int kVec, bool kIsNeox>
void run_instance(const RopeCacheParams& p, const LaunchPlan& plan) {
  with_params_of_form<T, kVec, kIsNeox>(
      p, plan.form, [&](const auto& params) { run_blocks<T, CacheT, kVec, kIsNeox>(params, plan, p); });
}

template <typename T, typename CacheT, bool kIsNeox>
void run_width(const RopeCacheParams& p, const LaunchPlan& plan) {
  switch (plan.vector_width) {
    case 8:
      if constexpr (sizeof(T) == 2) run_instance<T, CacheT, 8, kIsNeox>(p, plan);
      break;
    case 4:
      return run_instance<T, CacheT, 4, kIsNeox>(p, plan);
    case 2:
      return run_instance<T, CacheT, 2, kIsNeox>(p, plan);
    default:
      return run_instance<T, CacheT, 1, kIsNeox>(p, plan);
  }
}

template <typename T, typename CacheT>
void run_style(const RopeCacheParams& p, const LaunchPlan& plan) {
  p.is_neox ? run_width<T, CacheT, true>(p, plan) : run_width<T, CacheT, false>(p, plan);
}

inline void run_on_host(const RopeCacheParams& p) {
  const LaunchPlan plan = plan_launch(p);
  const bool is_fp8 = p.cache_dtype == DType::fp8_e4m3;
  if (p.dtype == DType::fp32) {
    is_fp8 ? run_style<float, fp8_e4m3>(p, plan) : run_style<float, float>(p, plan);
  } else {
    is_fp8 ? run_style<bf16, fp8_e4m3>(p, plan) : run_style<bf16, bf16>(p, plan);
  }
}

}  // namespace kvrope
