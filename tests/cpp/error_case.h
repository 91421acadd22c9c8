// One wrong thing in an otherwise good call, and what must come of it.
#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "arguments.h"
#include "small_call.h"

namespace kvrope {

enum class Error { value, type, index };

struct ErrorCase {
  std::string name;
  Error error;
  std::string argument;
  std::vector<std::string> fragments;  // what was expected, what was got
  std::function<void(FusedArguments&)> change;
};

inline std::ostream& operator<<(std::ostream& out, const ErrorCase& c) {
  return out << c.name;
}

using Args = FusedArguments;

inline at::Tensor like(const at::Tensor& tensor, std::vector<int64_t> shape) {
  return at::zeros(shape, tensor.options());
}

inline at::Tensor integers_like(const at::Tensor& tensor, const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong).to(tensor.device());
}

inline std::vector<at::Tensor> tensors_of(const Args& a) {
  std::vector<at::Tensor> tensors = {a.q,   a.k,      a.v, a.key_cache, a.value_cache, a.slot_mapping,
                                     a.pos, a.cos_sin};
  for (const auto* optional :
       {&a.k_scale, &a.v_scale, &a.offs, &a.q_out, &a.k_out, &a.zeros_out, &a.swa_slot_mapping}) {
    if (optional->has_value()) tensors.push_back(**optional);
  }
  std::erase_if(tensors, [](const at::Tensor& t) { return !t.defined() || t.is_meta() || t.is_sparse(); });
  return tensors;
}

struct Thrown {
  Error error;
  std::string text;
};

inline Thrown thrown_by(const Args& args) {
  try {
    fused_qk_rope_reshape_and_cache(args);
  } catch (const c10::ValueError& error) {
    return {Error::value, error.what_without_backtrace()};
  } catch (const c10::TypeError& error) {
    return {Error::type, error.what_without_backtrace()};
  } catch (const c10::IndexError& error) {
    return {Error::index, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another type of error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// One wrong thing in an otherwise good call: the right type, a text that says what, and not a bit written.
inline void expect_error(const ErrorCase& c, c10::Device device) {
  KVROPE_SKIP_WITHOUT(device);
  const CallOptions options = {.device = device};
  Args args = small_call(options);
  args.q_out = at::full_like(args.q, 7);
  args.k_out = at::full_like(args.k, 7);
  c.change(args);
  const std::vector<at::Tensor> tensors = tensors_of(args);
  std::vector<at::Tensor> before;
  for (const at::Tensor& tensor : tensors) before.push_back(tensor.clone());

  const Thrown thrown = thrown_by(args);
  EXPECT_EQ(thrown.error, c.error) << thrown.text;
  const std::string start = "fused_qk_rope_reshape_and_cache: " + c.argument;
  EXPECT_EQ(thrown.text.substr(0, start.size()), start) << thrown.text;
  EXPECT_TRUE(thrown.text.size() > start.size() &&
              std::string(": ").find(thrown.text[start.size()]) != std::string::npos)
      << "another argument: " << thrown.text;
  for (const std::string& fragment : c.fragments) {
    EXPECT_NE(thrown.text.find(fragment), std::string::npos)
        << '"' << fragment << "\" is not in: " << thrown.text;
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_TRUE(is_same_bits(tensors[i], before[i])) << "tensor " << i << " was written";
  }
}

using ErrorParam = std::tuple<ErrorCase, c10::Device>;

inline std::string error_case_name(const testing::TestParamInfo<ErrorParam>& info) {
  return std::get<0>(info.param).name + (std::get<1>(info.param).is_cuda() ? "_cuda" : "_cpu");
}

}  // namespace kvrope
