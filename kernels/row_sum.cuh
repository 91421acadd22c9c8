// The sum over all threads of a row, in the order of rms_norm.cuh: thread y of a row has the yth part. The
// threads of a row are a power of two (launch_plan.cpp): neighbours of one warp, or, where vectors are short
// and heads long, whole warps. Threads of other rows may be elsewhere or have returned.
#pragma once

#include "launch_plan.h"

namespace kvrope {

constexpr unsigned kFullWarp = 0xffffffffu;

// `lanes` lanes, `step` apart, have a part each.
__device__ __forceinline__ float sum_over_lanes(unsigned mask, int lanes, int step, float part) {
#pragma unroll 1
  for (int distance = step; distance < lanes * step; distance *= 2) {
    part += __shfl_xor_sync(mask, part, distance);
  }
  return part;
}

// One token a block: a warp has one row, and all its lanes have its part. Threads that have fewer rows than
// others return before these go on, and a barrier does not wait for what has returned.
inline __device__ __noinline__ float sum_over_warps(int threads_per_row, float part) {
  __shared__ float parts[kMaxThreadsPerBlock / kWarp];
  const int num_warps = threads_per_row / kWarp, row = static_cast<int>(threadIdx.z);
  float* parts_of_row = parts + row * num_warps;
  __syncthreads();  // all have read the parts of their rows before
  if (threadIdx.y % kWarp == 0) parts_of_row[threadIdx.y / kWarp] = part;
  __syncthreads();
  return sum_over_lanes(kFullWarp, num_warps, 1, parts_of_row[threadIdx.y % num_warps]);
}

template <bool kMaySpanWarps>
__device__ __forceinline__ float sum_over_row(const LaunchPlan& plan, float part) {
  if (kMaySpanWarps && plan.threads_per_row > kWarp) {
    return sum_over_warps(plan.threads_per_row, sum_over_lanes(kFullWarp, kWarp, 1, part));
  }
  const int step = plan.tokens_per_block, lanes = plan.threads_per_row;
  const unsigned every_step = step == 1 ? kFullWarp : 0x55555555u;
  const unsigned first_row = every_step >> (kWarp - lanes * step);
  const unsigned rows_before = threadIdx.z * static_cast<unsigned>(lanes * step) % kWarp;
  return sum_over_lanes(first_row << (rows_before + threadIdx.x), lanes, step, part);
}

}  // namespace kvrope
