// Whether strided tensors share elements, decided exactly: interleaved views of one buffer do not overlap
// although their address ranges do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace kvrope {

struct Axis {
  int64_t size, stride;
};

// Bytes of a strided array: `item_size` bytes at begin + sum of index * stride for every index of every axis.
struct StridedBytes {
  int64_t begin = 0, item_size = 1;
  c10::SmallVector<Axis, 5> axes;  // smallest stride (in bytes) first; axes of size 1 left out
  bool is_empty = false;
  // Tensors without data (meta) have no addresses: begin then counts from the start of this storage.
  const void* storage = nullptr;

  int64_t end() const;  // one past the last byte
};

// Nothing where sizes or strides are symbolic: they are known, and judged, when the call runs.
StridedBytes bytes_of(const at::Tensor& tensor);

bool share_a_byte(const StridedBytes& a, const StridedBytes& b);
bool overlaps_itself(const StridedBytes& a);  // two indices, one byte

struct NamedTensor {
  const char* name;
  const at::Tensor* tensor;
};

using InPlacePairs = std::initializer_list<std::pair<std::string_view, std::string_view>>;

// Throws ValueError where a written tensor overlaps itself, another written one or one that is read. A pair
// in in_place (written, read) may be one and the same view.
void require_no_overlap(const char* operation, c10::ArrayRef<NamedTensor> written,
                        c10::ArrayRef<NamedTensor> read, InPlacePairs in_place);

}  // namespace kvrope
