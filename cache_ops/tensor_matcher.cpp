#include "tensor_matcher.h"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "text.h"

namespace kvrope {
namespace {

std::string pattern_text(std::initializer_list<Size*> sizes) {
  std::string text = "(";
  for (const Size* size : sizes) text += (text.size() > 1 ? ", " : "") + size->describe();
  return text + (sizes.size() == 1 ? ",)" : ")");
}

// Bytes of storage that the elements of a tensor lie in, counted from the storage's begin; in 128 bits, since
// strides without data may be anything.
__int128 bytes_reached(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  __int128 last = tensor.storage_offset();
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  for (size_t dim = 0; dim < sizes.size(); ++dim) {
    last += static_cast<__int128>(sizes[dim] - 1) * strides[dim];
  }
  return (last + 1) * static_cast<__int128>(tensor.itemsize());
}

// torch lets a storage be resized under the tensors that look at it. Symbolic tensors have no elements.
bool has_all_elements(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) return true;
  const std::optional<int64_t> bytes = tensor.storage().sym_nbytes().maybe_as_int();
  return !bytes || bytes_reached(tensor) <= *bytes;
}

}  // namespace

bool Size::matches(const c10::SymInt& actual) {
  if (!value_) value_ = actual;
  return *value_ == actual;
}

std::string Size::describe() const {
  if (!value_) return name_;
  return text(name_, "=", *value_);
}

std::string dtype_name(at::ScalarType type) {
  return c10::getDtypeNames(type).first;
}

std::string shape_text(const at::Tensor& tensor) {
  return text_of(tensor.sym_sizes());
}

TensorMatcher::TensorMatcher(const char* operation, const char* first, const at::Tensor& device_from)
    : operation_(operation),
      first_(first),
      device_(device_from.defined() ? device_from.device() : at::kCPU) {}

std::string TensorMatcher::prefix(const char* argument) const {
  return std::string(operation_) + ": " + argument + ": ";
}

void TensorMatcher::shape(const char* argument, const at::Tensor& tensor,
                          std::initializer_list<Size*> sizes) const {
  TORCH_CHECK_VALUE(tensor.defined(),
                    text(prefix(argument), "expected a tensor of shape ", pattern_text(sizes), ", got none"));
  TORCH_CHECK_VALUE(tensor.device() == device_, text(prefix(argument), "expected a tensor on ", device_,
                                                     " like ", first_, ", got ", tensor.device()));
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided && !tensor.is_nested(),
                    text(prefix(argument), "expected a strided tensor, got another layout"));
  TORCH_CHECK_VALUE(
      !tensor.is_neg() && !tensor._is_zerotensor(),
      text(prefix(argument), "expected a tensor that holds its elements, got one with a pending ",
           tensor.is_neg() ? "negation" : "allocation (a ZeroTensor)"));
  TORCH_CHECK_VALUE(
      tensor.dim() == static_cast<int64_t>(sizes.size()),
      text(prefix(argument), "expected shape ", pattern_text(sizes), ", got ", shape_text(tensor)));
  const c10::SymIntArrayRef actual = tensor.sym_sizes();
  size_t i = 0;
  for (Size* size : sizes) {
    TORCH_CHECK_VALUE(size->matches(actual[i++]), text(prefix(argument), "expected shape ",
                                                       pattern_text(sizes), ", got ", shape_text(tensor)));
  }
  TORCH_CHECK_VALUE(has_all_elements(tensor),
                    text(prefix(argument), "expected a storage that holds all elements of shape ",
                         shape_text(tensor), ", got one of ", tensor.storage().sym_nbytes(), " bytes"));
}

void TensorMatcher::dtype(const char* argument, const at::Tensor& tensor,
                          std::initializer_list<at::ScalarType> fitting) const {
  std::string names;
  for (const at::ScalarType type : fitting) {
    if (tensor.scalar_type() == type) return;
  }
  for (const at::ScalarType type : fitting) names += (names.empty() ? "" : " or ") + dtype_name(type);
  TORCH_CHECK_TYPE(
      false, text(prefix(argument), "expected dtype ", names, ", got ", dtype_name(tensor.scalar_type())));
}

}  // namespace kvrope
