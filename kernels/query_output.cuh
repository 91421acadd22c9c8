// Where the queries that a thread serves go: as they are, or in fp8 for attention kernels that take them so,
// cast(x * (1 / q_scale)).
#pragma once

#include "extensions.cuh"
#include "head_slice.cuh"
#include "instruction_order.cuh"
#include "launch_plan.h"

namespace kvrope {

// A query head has the scale of its KV head.
template <typename Params>
__device__ __forceinline__ float query_scale(const Params& p, const LaunchPlan& plan, int head) {
  if (p.q_scale.data == nullptr) return 1.0f;
  if (p.q_scale.head_stride == 0) return *p.q_scale.data;
  return p.q_scale.data[plan.q_heads_per_group.quotient(static_cast<uint32_t>(head)) * p.q_scale.head_stride];
}

template <typename T, int kVec, Presence kFp8, typename Params>
class QueryOutput {
 public:
  using Index = IndexOf<Params>;

  // Starts to load the scale of the first head.
  __device__ __forceinline__ QueryOutput(const Params& p, const LaunchPlan& plan, Index token, int head)
      : p_(p), plan_(plan) {
    if (is_fp8()) scale_ = query_scale(p, plan, head);
    to_ = static_cast<char*>(p.q_out.data) + bytes(product(token, p.q_out.token_stride) +
                                                   product(static_cast<Index>(head), p.q_out.head_stride));
  }

  __device__ __forceinline__ bool is_fp8() const { return has_fp8_queries<kFp8>(p_); }

  // Waits for the scale.
  __device__ __forceinline__ void invert_scale() {
    if (!is_fp8()) return;
    reciprocal_ = Scale(scale_, false).reciprocal;
    work_out_now(reciprocal_);  // or the compiler divides where the angles have been waited for
  }

  __device__ __forceinline__ void store(const SliceDims& dims, const HeadSlice<T, kVec>& x) const {
    store_slice(reinterpret_cast<T*>(to_), p_.q_out.dim_stride, dims, x);
  }

  __device__ __forceinline__ void store_fp8(const SliceDims& dims, SliceValues<kVec> values) const {
#pragma unroll
    for (int j = 0; j < kVec; ++j) values.lo[j] *= reciprocal_, values.hi[j] *= reciprocal_;
    if (p_.q_out_dtype == DType::fp8_e4m3) {
      store_slice(reinterpret_cast<fp8_e4m3*>(to_), p_.q_out.dim_stride, dims, narrow<fp8_e4m3>(values));
    } else {
      store_slice(reinterpret_cast<fp8_e5m2*>(to_), p_.q_out.dim_stride, dims, narrow<fp8_e5m2>(values));
    }
  }

  __device__ __forceinline__ void go_to(int head, int step) {
    to_ += bytes(product(static_cast<Index>(step), p_.q_out.head_stride));
    if (!is_fp8()) return;
    scale_ = query_scale(p_, plan_, head);
    invert_scale();
  }

 private:
  __device__ __forceinline__ int64_t bytes(int64_t elements) const {
    return is_fp8() ? elements : elements * static_cast<int64_t>(sizeof(T));
  }

  const Params& p_;
  const LaunchPlan& plan_;
  char* to_;
  float scale_, reciprocal_;
};

}  // namespace kvrope
