// The sum over all threads of a row, in the order of rms_norm.cuh: thread y of a row has the yth part. The
// threads of a row are a power of two (launch_plan.cpp): lanes of one warp, tokens_per_block apart, or,
// where vectors are short and heads long, whole warps.
#pragma once

#include "launch_plan.h"

namespace kvrope {

// The lanes of a row are those whose numbers differ in the bits of `distances` alone. All lanes of the warp
// come here equally often, but for those that have returned: a shuffle does not wait for these, and what it
// reads from them is not used.
__device__ __forceinline__ float sum_over_lanes(unsigned distances, float part) {
#pragma unroll
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const float other = __shfl_xor_sync(kFullWarp, part, static_cast<int>(distance));
    if (distances & distance) part += other;
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
  return sum_over_lanes(static_cast<unsigned>(num_warps - 1), parts_of_row[threadIdx.y % num_warps]);
}

template <bool kMaySpanWarps>
__device__ __forceinline__ float sum_over_row(const LaunchPlan& plan, float part) {
  const float sum = sum_over_lanes(plan.distances_in_row, part);
  return kMaySpanWarps && plan.threads_per_row > kWarp ? sum_over_warps(plan.threads_per_row, sum) : sum;
}

}  // namespace kvrope
