// Where tensors lie in their buffers, in elements: (offset, sizes, strides) of every kind of input and output
// a case can ask for, and the layouts of the caches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runner/case_spec.h"

namespace kvrope::regress {

struct Placement {
  int64_t offset = 0;
  std::vector<int64_t> sizes, strides;
  int64_t extent = 0;  // elements of the buffer that the tensor, its offset and its padding take

  int64_t at(int64_t i) const { return offset + i * strides[0]; }
  int64_t at(int64_t i, int64_t j) const { return at(i) + j * strides[1]; }
  int64_t at(int64_t i, int64_t j, int64_t k) const { return at(i, j) + k * strides[2]; }
};

// The tensor `name` where `usual` has it, or where the case's own strides for it say.
Placement place_tensor(const CaseSpec& spec, const std::string& name, const Placement& usual);

// Bytes of the buffers of the tensors that have strides of their own.
double bytes_of_own_strides(const CaseSpec& spec, int64_t num_blocks);

// Rows (rows, heads, dims). Odd: everything starts at an odd element and no row is aligned.
Placement contiguous_rows(int64_t rows, int64_t heads, int64_t dims);
Placement odd_rows(int64_t rows, int64_t heads, int64_t dims);
Placement head_major_rows(int64_t rows, int64_t heads, int64_t dims);  // a transposed (heads, rows, dims)
Placement dim_major_rows(int64_t rows, int64_t heads, int64_t dims);   // a transposed (rows, dims, heads)

struct QkvPlacement {
  Placement q, k, v;  // views of one buffer when `is_fused`
  bool is_fused;
};
QkvPlacement place_qkv(const CaseSpec& spec);
Placement place_output(const CaseSpec& spec, int64_t rows, int64_t heads, int64_t dims, bool may_transpose);
Placement place_table(const CaseSpec& spec, int64_t rows);
Placement place_weight(const CaseSpec& spec);
// Indices, every other element of a buffer where the inputs are transposed. Positions of several axes are
// (axes, count), then a transposed (count, axes).
Placement place_indices(const CaseSpec& spec, int64_t count);
Placement place_positions(const CaseSpec& spec, int64_t axes, int64_t count);

// The paged caches as README.md draws them. Offsets of single elements are worked out from the drawing, not
// from the strides of the tensors, but where the case gives those itself.
class CachePlacement {
 public:
  CachePlacement(const CaseSpec& spec, int64_t num_blocks);

  const Placement& key() const { return key_; }
  const Placement& value() const { return value_; }
  bool is_shared() const { return layout_ == Layout::packed_kv && !own_strides_; }  // both in one buffer
  int64_t key_element(int64_t slot, int64_t head, int64_t dim) const;
  int64_t value_element(int64_t slot, int64_t head, int64_t dim) const;

 private:
  void place_flash();
  void place_x_split();
  std::vector<int64_t> key_index(int64_t slot, int64_t head, int64_t dim) const;
  std::vector<int64_t> value_index(int64_t slot, int64_t head, int64_t dim) const;

  Layout layout_;
  int64_t num_blocks_, block_size_, heads_, key_dim_, value_dim_;
  int64_t x_, key_splits_,
      slot_splits_;  // D / x and BS / x, rounded up: where that is inexact, the call is refused
  int64_t padding_, start_;
  bool own_strides_;                       // of either cache
  int64_t key_page_ = 0, value_page_ = 0;  // elements from block to block
  Placement key_, value_;
};

}  // namespace kvrope::regress
