// Queries that leave in fp8, for attention kernels that take them so: cast(x * (1 / q_scale)).
#pragma once

#include "head_slice.cuh"
#include "plain_call.cuh"

namespace kvrope {

// A query head has the scale of its KV head.
template <typename Params>
__device__ __forceinline__ float query_scale(const Params& p, int head) {
  if (p.q_scale.data == nullptr) return 1.0f;
  if (p.q_scale.head_stride == 0) return *p.q_scale.data;
  const unsigned heads_per_group =
      static_cast<unsigned>(p.num_q_heads) / static_cast<unsigned>(p.num_kv_heads);
  return p.q_scale.data[static_cast<unsigned>(head) / heads_per_group * p.q_scale.head_stride];
}

template <int kVec, typename Params, typename Index>
__device__ __forceinline__ void store_fp8_query(const Params& p, Index token, int head, const SliceDims& dims,
                                                float scale_of_head, SliceValues<kVec> values) {
  const Scale scale(scale_of_head, false);
#pragma unroll
  for (int j = 0; j < kVec; ++j) {
    values.lo[j] = scale.apply(values.lo[j]);
    values.hi[j] = scale.apply(values.hi[j]);
  }
  if (p.q_out_dtype == DType::fp8_e4m3) {
    store_slice(head_of<fp8_e4m3>(p.q_out, token, head), p.q_out.dim_stride, dims, narrow<fp8_e4m3>(values));
  } else {
    store_slice(head_of<fp8_e5m2>(p.q_out, token, head), p.q_out.dim_stride, dims, narrow<fp8_e5m2>(values));
  }
}

}  // namespace kvrope
