// Shapes as symbols: a size is bound by the first tensor that has it and compared with every later one, so
// that one line a tensor replaces a dozen checks and every error reads alike:
//
//   fused_qk_rope_reshape_and_cache: k: expected shape (Tk, KH, D=64), got (5, 2, 32)
//
// Sizes are c10::SymInt: the same checks serve real tensors and torch.compile's symbolic ones.
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <optional>
#include <string>

namespace kvrope {

class Size {
 public:
  explicit Size(const char* name) : name_(name) {}
  Size(const char* name, c10::SymInt value) : name_(name), value_(std::move(value)) {}

  bool matches(const c10::SymInt& actual);  // binds an unbound size
  const c10::SymInt& value() const { return *value_; }
  std::string describe() const;  // "D=64", or "D" before it is bound

 private:
  const char* name_;
  std::optional<c10::SymInt> value_;
};

// All expectations of one call. Throws ValueError, or TypeError for a dtype, naming operation and argument.
class TensorMatcher {
 public:
  // `first` names the tensor whose device all others must have.
  TensorMatcher(const char* operation, const char* first, const at::Tensor& device_from);

  // The tensor has this rank and these sizes, lives on the common device, is strided, and its storage holds
  // all of its elements.
  void shape(const char* argument, const at::Tensor& tensor, std::initializer_list<Size*> sizes) const;
  void dtype(const char* argument, const at::Tensor& tensor,
             std::initializer_list<at::ScalarType> fitting) const;

  // The part of an error text that every message begins with: "operation: argument: ".
  std::string prefix(const char* argument) const;

 private:
  const char *operation_, *first_;
  c10::Device device_;
};

std::string dtype_name(at::ScalarType type);       // "float16"
std::string shape_text(const at::Tensor& tensor);  // "(5, 2, 64)"

}  // namespace kvrope
