// Where an element of a paged cache lives: one formula for every layout.
//
// A slot is block * block_size + offset. Some layouts split the offset, some split the head dimension, and
// each part has its own stride:
//
//   element(slot, head, dim) = block * block_stride + head * head_stride
//                            + (offset / offset_split) * offset_outer_stride
//                            + (offset % offset_split) * offset_inner_stride
//                            + (dim / dim_split) * dim_outer_stride
//                            + (dim % dim_split) * dim_inner_stride
//
//   layout            tensor                      offset_split   dim_split
//   flash             (NB, BS, KH, D)             -              -
//   x-split key       (NB, KH, D/x, BS, x)        -              x
//   x-split value     (NB, KH, Dv, BS)            -              -
//   shuffled value    (NB, KH, BS/x, Dv, x)       x              -
//
// A part that is not split has split 1: its inner index is 0. Splits are powers of two and kept as their
// logarithm.
#pragma once

#include "index_math.h"

namespace kvrope {

template <typename Index>
struct BasicCacheLayout {
  Index block_stride;
  Index head_stride;
  Index offset_outer_stride, offset_inner_stride;
  Index dim_outer_stride, dim_inner_stride;
  int offset_split_log2;
  int dim_split_log2;

  KVROPE_HOST_DEVICE int64_t row_offset(Index block, Index offset, Index head) const {
    const Index inner = offset & ((Index{1} << offset_split_log2) - 1);
    return product(block, block_stride) + product(head, head_stride) +
           product(offset >> offset_split_log2, offset_outer_stride) + product(inner, offset_inner_stride);
  }

  KVROPE_HOST_DEVICE int64_t dim_offset(Index dim) const {
    const Index inner = dim & ((Index{1} << dim_split_log2) - 1);
    return product(dim >> dim_split_log2, dim_outer_stride) + product(inner, dim_inner_stride);
  }

  // Whether n head dimensions that start at a multiple of n are n neighbouring elements.
  KVROPE_HOST_DEVICE bool has_contiguous_dims(int n) const {
    if (n == 1) return true;
    if (dim_split_log2 == 0) return dim_outer_stride == 1;
    return dim_inner_stride == 1 && (1 << dim_split_log2) % n == 0;
  }
};

using CacheLayout = BasicCacheLayout<int64_t>;

}  // namespace kvrope
