// Attention over the blocks of paged caches.
#pragma once

#include <ATen/core/Tensor.h>

#include "engine_step/model.h"

namespace kvrope::engine {

// fp32 values of cached bytes (..., KH, D), fp8 times the scale of its head.
at::Tensor cached_values(const at::Tensor& cache, const at::Tensor& scale, const ModelConfig& config);

// Blocks of the window caches for blocks (...) of the full ones; block 0 for those that are evicted.
at::Tensor window_tables(const at::Tensor& tables, const at::Tensor& window_table, int64_t block_size);

// q (T, QH, D), of which row t sees the tokens up to its position, in the last `window` of them if that is
// not 0, by way of its row of tables (T, max_blocks). Gives (T, QH, D) fp32.
at::Tensor attend(const at::Tensor& q, const Layer& layer, const ModelConfig& config,
                  const at::Tensor& tables, const at::Tensor& positions, int64_t window);

}  // namespace kvrope::engine
