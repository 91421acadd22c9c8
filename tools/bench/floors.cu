// The floors that a call is measured against: `copy` moves the same bytes and does nothing else, `chain` has
// the same dependencies (position -> table row, activation -> store; slot -> store) and the least work.
#include "floors.h"

namespace {

constexpr int kThreads = 256;
constexpr int kWordsPerThread = 4;

__global__ void copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to, int64_t num_words) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kWordsPerThread + threadIdx.x;
  uint4 words[kWordsPerThread];
#pragma unroll
  for (int j = 0; j < kWordsPerThread; ++j) {
    if (first + j * kThreads < num_words) words[j] = from[first + j * kThreads];
  }
#pragma unroll
  for (int j = 0; j < kWordsPerThread; ++j) {
    if (first + j * kThreads < num_words) to[first + j * kThreads] = words[j];
  }
}

// One block a token; table rows of 128 fp32 columns.
__global__ void chain_kernel(const int64_t* pos, const float* table, const int64_t* slots, const uint4* q,
                             uint4* q_out, uint4* cache) {
  const int64_t token = blockIdx.x, words = blockDim.x;
  const int64_t position = pos[token], slot = slots[token];
  uint4 word = q[token * words + threadIdx.x];
  word.x ^= __float_as_uint(table[position * 128 + (threadIdx.x & 63)]);
  q_out[token * words + threadIdx.x] = word;
  if (slot >= 0) cache[slot * words + threadIdx.x] = word;
}

}  // namespace

extern "C" {

int kvrope_floor_copy(const void* from, void* to, int64_t num_words, cudaStream_t stream) {
  const int64_t words_per_block = kThreads * kWordsPerThread;
  const auto blocks = static_cast<unsigned>((num_words + words_per_block - 1) / words_per_block);
  copy_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<const uint4*>(from), static_cast<uint4*>(to),
                                               num_words);
  return cudaGetLastError();
}

int kvrope_floor_chain(const int64_t* pos, const float* table, const int64_t* slots, const void* q,
                       void* q_out, void* cache, int num_tokens, int num_words, cudaStream_t stream) {
  chain_kernel<<<num_tokens, num_words, 0, stream>>>(pos, table, slots, static_cast<const uint4*>(q),
                                                     static_cast<uint4*>(q_out), static_cast<uint4*>(cache));
  return cudaGetLastError();
}

}  // extern "C"
