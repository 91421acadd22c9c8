// Rotates one row of q and of k with plain CUDA pointers; without a GPU only the call with no rows is made.
#include <cuda_runtime.h>
#include <kvrope/kernels/rope_cache.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

template <typename T>
T* to_device(const std::vector<T>& values) {
  T* data = nullptr;
  require(cudaMalloc(&data, values.size() * sizeof(T)), "cudaMalloc");
  require(cudaMemcpy(data, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
  return data;
}

void require_values(const float* data, const std::vector<float>& expected) {
  std::vector<float> got(expected.size());
  require(cudaMemcpy(got.data(), data, got.size() * sizeof(float), cudaMemcpyDeviceToHost), "copy");
  if (got == expected) return;
  std::fprintf(stderr, "got %g %g %g %g\n", got[0], got[1], got[2], got[3]);
  std::exit(1);
}

// Cosine 0 and sine 1: NeoX rotation takes the pairs (1, 3), (2, 4) to (-3, 1), (-4, 2).
void rotate_one_row() {
  float* q = to_device<float>({1, 2, 3, 4});
  float* k = to_device<float>({5, 6, 7, 8});
  kvrope::RopeCacheParams params{};
  params.q = params.q_out = {q, 4, 4, 1};
  params.k = params.k_out = {k, 4, 4, 1};
  params.pos = {to_device<int64_t>({0}), 1, 1, true};
  params.cos_sin = {to_device<float>({0, 0, 1, 1}), 1, 4, 1, kvrope::DType::fp32};
  params.num_tokens = params.num_kv_rows = 1;
  params.num_q_heads = params.num_kv_heads = 1;
  params.head_size = params.v_head_size = params.rotary_dim = 4;
  params.dtype = params.cache_dtype = kvrope::DType::fp32;
  params.is_neox = true;
  params.has_cache = false;
  require(kvrope::launch_rope_cache(params, nullptr), "launch_rope_cache");
  require_values(q, {-3, -4, 1, 2});
  require_values(k, {-7, -8, 5, 6});
}

}  // namespace

int main() {
  require(kvrope::launch_rope_cache({}, nullptr), "launch_rope_cache without rows");
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
    rotate_one_row();
    std::printf("cuda: passed\n");
  } else {
    std::printf("no rows: passed\n");
  }
}
