// What calls are measured against, for kvrope-regress (linked) and bench_peers.py (loaded). Every function
// enqueues on `stream` and returns the CUDA error, 0 for none.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

extern "C" {

// Copies num_words 16-byte words and does nothing else.
int kvrope_floor_copy(const void* from, void* to, int64_t num_words, cudaStream_t stream);

// The dependencies of a call (position -> table row, activation -> store; slot -> store) and the least work:
// one block a token, num_words = min(512, words of a row of q) 16-byte words a token of q, q_out and cache
// alike; table rows of 128 fp32 columns; a negative slot is not stored.
int kvrope_floor_chain(const int64_t* pos, const float* table, const int64_t* slots, const void* q,
                       void* q_out, void* cache, int num_tokens, int num_words, cudaStream_t stream);

// Turns the programmatic dependencies of a captured graph into full ones: its launches then wait for each
// other as without programmatic dependent launch, whatever kernel they are of.
int kvrope_graph_without_pdl(cudaGraph_t graph);

}  // extern "C"
