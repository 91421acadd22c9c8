#include "runner/placement.h"

#include <algorithm>

namespace kvrope::regress {

namespace {

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size(), 1);
  for (size_t axis = sizes.size(); axis-- > 1;) strides[axis - 1] = strides[axis] * sizes[axis];
  return strides;
}

// Elements up to the tensor's last one; as a double, since strides and sizes may be any.
double extent_of(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides, int64_t offset) {
  auto extent = static_cast<double>(offset);
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (sizes[axis] == 0) return static_cast<double>(offset);
    extent += static_cast<double>(sizes[axis] - 1) * static_cast<double>(strides[axis]);
  }
  return extent + 1;
}

int64_t element_at(const Placement& place, const std::vector<int64_t>& index) {
  int64_t element = place.offset;
  for (size_t axis = 0; axis < index.size(); ++axis) element += index[axis] * place.strides[axis];
  return element;
}

}  // namespace

Placement place_tensor(const CaseSpec& spec, const std::string& name, const Placement& usual) {
  auto own = spec.inputs.tensors.find(name);
  if (own == spec.inputs.tensors.end()) return usual;
  const TensorStrides& tensor = own->second;
  Placement place{tensor.offset, usual.sizes, tensor.strides.value_or(contiguous_strides(usual.sizes))};
  place.extent = static_cast<int64_t>(extent_of(place.sizes, place.strides, place.offset));
  return place;
}

double bytes_of_own_strides(const CaseSpec& spec, int64_t num_blocks) {
  double bytes = 0;
  for (const auto& [name, tensor] : spec.inputs.tensors) {
    if (!tensor.strides || tensor.strides->empty()) continue;
    bool is_cache = name == "key_cache" || name == "value_cache";
    // Each axis but the first at the largest that any may have.
    std::vector<int64_t> sizes(tensor.strides->size(),
                               std::max({spec.q_heads, spec.head_dim, spec.value_dim(), spec.block_size}));
    if (name == "pos") sizes.back() = spec.tokens();  // of (axes, T) too
    sizes[0] = is_cache ? num_blocks : std::max({spec.tokens(), spec.kv_rows(), spec.table.rows.value_or(0)});
    bytes += 8 * extent_of(sizes, *tensor.strides, tensor.offset);
  }
  return bytes;
}

Placement contiguous_rows(int64_t rows, int64_t heads, int64_t dims) {
  return {0, {rows, heads, dims}, {heads * dims, dims, 1}, rows * heads * dims};
}

Placement odd_rows(int64_t rows, int64_t heads, int64_t dims) {
  int64_t row = heads * dims + 1;
  return {1, {rows, heads, dims}, {row, dims, 1}, 1 + rows * row};
}

Placement head_major_rows(int64_t rows, int64_t heads, int64_t dims) {
  return {0, {rows, heads, dims}, {dims, rows * dims, 1}, rows * heads * dims};
}

Placement dim_major_rows(int64_t rows, int64_t heads, int64_t dims) {
  return {0, {rows, heads, dims}, {dims * heads, 1, heads}, rows * heads * dims};
}

QkvPlacement place_qkv(const CaseSpec& spec) {
  using Strides = InputsSpec::Strides;
  int64_t tokens = spec.tokens(), rows = spec.kv_rows();
  int64_t q_heads = spec.q_heads, heads = spec.kv_heads, dims = spec.head_dim, value_dims = spec.value_dim();
  switch (spec.inputs.strides) {
    case Strides::contiguous:
      break;
    case Strides::odd_offset:
      return {odd_rows(tokens, q_heads, dims), odd_rows(rows, heads, dims), odd_rows(rows, heads, value_dims),
              false};
    case Strides::transposed:
      return {head_major_rows(tokens, q_heads, dims), head_major_rows(rows, heads, dims),
              dim_major_rows(rows, heads, value_dims), false};
    case Strides::fused_qkv: {
      int64_t k_start = q_heads * dims, v_start = k_start + heads * dims;
      int64_t row = v_start + heads * value_dims;
      int64_t extent = std::max(tokens, rows) * row;
      return {{0, {tokens, q_heads, dims}, {row, dims, 1}, extent},
              {k_start, {rows, heads, dims}, {row, dims, 1}, extent},
              {v_start, {rows, heads, value_dims}, {row, value_dims, 1}, extent},
              true};
    }
  }
  return {contiguous_rows(tokens, q_heads, dims), contiguous_rows(rows, heads, dims),
          contiguous_rows(rows, heads, value_dims), false};
}

Placement place_output(const CaseSpec& spec, int64_t rows, int64_t heads, int64_t dims, bool may_transpose) {
  using Strides = InputsSpec::Strides;
  if (spec.inputs.strides == Strides::odd_offset) return odd_rows(rows, heads, dims);
  if (spec.inputs.strides == Strides::transposed && may_transpose) return head_major_rows(rows, heads, dims);
  return contiguous_rows(rows, heads, dims);
}

Placement place_table(const CaseSpec& spec, int64_t rows) {
  using Strides = InputsSpec::Strides;
  int64_t width = spec.table_width();
  if (spec.inputs.strides == Strides::odd_offset)
    return {1, {rows, width}, {width + 1, 1}, 1 + rows * (width + 1)};
  if (spec.inputs.strides == Strides::transposed) return {0, {rows, width}, {1, rows}, rows * width};
  return {0, {rows, width}, {width, 1}, rows * width};
}

Placement place_weight(const CaseSpec& spec) {
  using Strides = InputsSpec::Strides;
  int64_t size = spec.head_dim;
  if (spec.inputs.strides == Strides::odd_offset) return {1, {size}, {1}, 1 + size};
  if (spec.inputs.strides == Strides::transposed) return {0, {size}, {2}, 2 * size};
  return {0, {size}, {1}, size};
}

Placement place_indices(const CaseSpec& spec, int64_t count) {
  int64_t stride = spec.inputs.strides == InputsSpec::Strides::transposed ? 2 : 1;
  return {0, {count}, {stride}, count * stride};
}

Placement place_positions(const CaseSpec& spec, int64_t axes, int64_t count) {
  using Strides = InputsSpec::Strides;
  if (axes == 1) return place_indices(spec, count);
  if (spec.inputs.strides == Strides::odd_offset)
    return {1, {axes, count}, {count + 1, 1}, 1 + axes * (count + 1)};
  if (spec.inputs.strides == Strides::transposed) return {0, {axes, count}, {2, 2 * axes}, 2 * axes * count};
  return {0, {axes, count}, {count, 1}, axes * count};
}

CachePlacement::CachePlacement(const CaseSpec& spec, int64_t num_blocks)
    : layout_(spec.layout),
      num_blocks_(num_blocks),
      block_size_(spec.block_size),
      heads_(spec.kv_heads),
      key_dim_(spec.head_dim),
      value_dim_(spec.value_dim()),
      x_(spec.split()),
      key_splits_((key_dim_ + x_ - 1) / x_),
      slot_splits_((block_size_ + x_ - 1) / x_),
      padding_(spec.page_padding),
      start_(spec.inputs.strides == InputsSpec::Strides::odd_offset ? 1 : 0),
      own_strides_(spec.inputs.tensors.count("key_cache") || spec.inputs.tensors.count("value_cache")) {
  if (spec.is_flash()) {
    place_flash();
  } else {
    place_x_split();
  }
  key_.extent = start_ + num_blocks_ * key_page_;
  value_.extent = start_ + num_blocks_ * value_page_;
  key_ = place_tensor(spec, "key_cache", key_);
  value_ = place_tensor(spec, "value_cache", value_);
}

// NHD page: (BS, KH, D). HND page: (KH, BS, D). Packed page: K as NHD, then V.
void CachePlacement::place_flash() {
  int64_t key_size = block_size_ * heads_ * key_dim_, value_size = block_size_ * heads_ * value_dim_;
  key_page_ = key_size + padding_;
  value_page_ = value_size + padding_;
  int64_t value_start = start_;
  if (layout_ == Layout::packed_kv) {
    key_page_ = value_page_ = key_size + value_size + padding_;
    value_start += key_size;
  }
  bool is_hnd = layout_ == Layout::flash_hnd;
  auto strides = [&](int64_t page, int64_t dim) -> std::vector<int64_t> {
    if (is_hnd) return {page, dim, block_size_ * dim, 1};
    return {page, heads_ * dim, dim, 1};
  };
  key_ = {start_, {num_blocks_, block_size_, heads_, key_dim_}, strides(key_page_, key_dim_)};
  value_ = {value_start, {num_blocks_, block_size_, heads_, value_dim_}, strides(value_page_, value_dim_)};
}

// Key page: (KH, D/x, BS, x). Value page: (KH, Dv, BS), or shuffled (KH, BS/x, Dv, x).
void CachePlacement::place_x_split() {
  key_page_ = heads_ * key_splits_ * block_size_ * x_ + padding_;
  key_ = {start_,
          {num_blocks_, heads_, key_splits_, block_size_, x_},
          {key_page_, key_splits_ * block_size_ * x_, block_size_ * x_, x_, 1}};
  if (layout_ == Layout::x_split) {
    value_page_ = heads_ * value_dim_ * block_size_ + padding_;
    value_ = {start_,
              {num_blocks_, heads_, value_dim_, block_size_},
              {value_page_, value_dim_ * block_size_, block_size_, 1}};
  } else {
    value_page_ = heads_ * slot_splits_ * value_dim_ * x_ + padding_;
    value_ = {start_,
              {num_blocks_, heads_, slot_splits_, value_dim_, x_},
              {value_page_, slot_splits_ * value_dim_ * x_, value_dim_ * x_, x_, 1}};
  }
}

// Indices of the tensors as README.md has them.
std::vector<int64_t> CachePlacement::key_index(int64_t slot, int64_t head, int64_t dim) const {
  int64_t block = slot / block_size_, row = slot % block_size_;
  if (key_.sizes.size() == 4) return {block, row, head, dim};
  return {block, head, dim / x_, row, dim % x_};
}

std::vector<int64_t> CachePlacement::value_index(int64_t slot, int64_t head, int64_t dim) const {
  int64_t block = slot / block_size_, row = slot % block_size_;
  if (layout_ == Layout::x_split) return {block, head, dim, row};
  if (layout_ == Layout::x_split_shuffle) return {block, head, row / x_, dim, row % x_};
  return {block, row, head, dim};
}

int64_t CachePlacement::key_element(int64_t slot, int64_t head, int64_t dim) const {
  if (own_strides_) return element_at(key_, key_index(slot, head, dim));
  int64_t block = slot / block_size_, row = slot % block_size_;
  int64_t page = start_ + block * key_page_;
  switch (layout_) {
    case Layout::flash_nhd:
    case Layout::packed_kv:
      return page + (row * heads_ + head) * key_dim_ + dim;
    case Layout::flash_hnd:
      return page + (head * block_size_ + row) * key_dim_ + dim;
    case Layout::x_split:
    case Layout::x_split_shuffle:
      return page + ((head * key_splits_ + dim / x_) * block_size_ + row) * x_ + dim % x_;
  }
  return -1;
}

int64_t CachePlacement::value_element(int64_t slot, int64_t head, int64_t dim) const {
  if (own_strides_) return element_at(value_, value_index(slot, head, dim));
  int64_t block = slot / block_size_, row = slot % block_size_;
  int64_t page = start_ + block * value_page_;
  switch (layout_) {
    case Layout::flash_nhd:
      return page + (row * heads_ + head) * value_dim_ + dim;
    case Layout::packed_kv:
      return page + block_size_ * heads_ * key_dim_ + (row * heads_ + head) * value_dim_ + dim;
    case Layout::flash_hnd:
      return page + (head * block_size_ + row) * value_dim_ + dim;
    case Layout::x_split:
      return page + (head * value_dim_ + dim) * block_size_ + row;
    case Layout::x_split_shuffle:
      return page + ((head * slot_splits_ + row / x_) * value_dim_ + dim) * x_ + row % x_;
  }
  return -1;
}

}  // namespace kvrope::regress
