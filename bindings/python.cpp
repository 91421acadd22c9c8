// kvrope._C: what Python needs besides the torch operators, which loading this module registers.
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <tuple>
#include <type_traits>
#include <utility>

#include "cos_sin_table.h"
#include "fault.h"
#include "torch_library.h"

namespace py = pybind11;

namespace pybind11::detail {

template <>
struct type_caster<at::OptionalIntArrayRef> {
  PYBIND11_TYPE_CASTER(at::OptionalIntArrayRef, const_name("Optional[Sequence[int]]"));

  bool load(handle source, bool convert) {
    if (source.is_none()) return true;
    if (!numbers_.load(source, convert)) return false;
    value = at::IntArrayRef(cast_op<const std::vector<int64_t>&>(numbers_));
    return true;
  }

 private:
  make_caster<std::vector<int64_t>> numbers_;
};

}  // namespace pybind11::detail

namespace {

constexpr char kFused[] = "kvrope::fused_qk_rope_reshape_and_cache";
constexpr char kRope[] = "kvrope::rope";
constexpr char kReshapeAndCache[] = "kvrope::reshape_and_cache";

// An operator by way of the dispatcher, as torch.ops calls it, but with typed arguments: matching Python's to
// the schema takes torch.ops longer than all the rest of a call.
template <const char* kName, typename Signature>
struct TypedOperator;

template <const char* kName, typename... Args>
struct TypedOperator<kName, void(Args...)> {
  static bool call(Args... args) {
    static const auto operation =
        c10::Dispatcher::singleton().findSchemaOrThrow(kName, "").template typed<void(Args...)>();
    operation.call(args...);
    return true;
  }
};

// The fused call returns q_out as the Python function does, (T, QH * D): there a view takes four times as
// long.
template <typename Signature>
struct FusedOperator;

template <typename... Args>
struct FusedOperator<void(Args...)> {
  static at::Tensor call(Args... args) {
    TypedOperator<kFused, void(Args...)>::call(args...);
    constexpr size_t kQOut = 14;  // of FusedSignature
    const at::Tensor& q_out = std::get<kQOut>(std::tie(args...));
    return q_out.view_symint({q_out.sym_size(0), q_out.sym_size(1) * q_out.sym_size(2)});
  }
};

// Whether an argument may be a tensor with a __torch_function__ of its own.
template <typename Arg>
bool may_overrule(PyObject* argument) {
  using Value = std::decay_t<Arg>;
  constexpr bool kIsTensor =
      std::is_same_v<Value, at::Tensor> || std::is_same_v<Value, std::optional<at::Tensor>>;
  return kIsTensor && !Py_IsNone(argument) && !THPVariable_CheckExact(argument);
}

// kCall as a function of the C API, which takes its arguments by position, all of them. pybind11's own way,
// with a list of overloads and a list of arguments, takes longer. Returns None, and calls nothing, where
// torch must see the arguments, as a __torch_function__ may overrule the call, or one is of another type.
template <auto kCall, typename Signature = decltype(kCall)>
struct PythonFunction;

template <auto kCall, typename Result, typename... Args>
struct PythonFunction<kCall, Result (*)(Args...)> {
  static PyObject* call(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    HANDLE_TH_ERRORS
    TORCH_CHECK_TYPE(count == sizeof...(Args), "expected ", sizeof...(Args), " arguments, got ", count);
    return call_with(arguments, std::index_sequence_for<Args...>()).release().ptr();
    END_HANDLE_TH_ERRORS
  }

 private:
  template <size_t... kNth>
  static py::object call_with(PyObject* const* arguments, std::index_sequence<kNth...>) {
    std::tuple<py::detail::make_caster<Args>...> casters;
    if (at::impl::torch_function_mode_enabled() || (may_overrule<Args>(arguments[kNth]) || ...))
      return py::none();
    if (!(std::get<kNth>(casters).load(arguments[kNth], /*convert=*/true) && ...)) return py::none();
    Result result = [&] {
      py::gil_scoped_release no_gil;
      return kCall(py::detail::cast_op<Args>(std::get<kNth>(casters))...);
    }();
    return py::cast(std::move(result));
  }
};

template <auto kCall>
void bind_operator(py::module_& m, const char* name) {
  const auto entry =
      reinterpret_cast<void (*)()>(PythonFunction<kCall>::call);  // METH_FASTCALL says of what type
  static PyMethodDef method = {name, reinterpret_cast<PyCFunction>(entry), METH_FASTCALL, nullptr};
  m.add_object(name, py::reinterpret_steal<py::object>(PyCFunction_NewEx(&method, nullptr, nullptr)));
}

// (kind, argument, row, value) or None.
py::object last_fault(c10::Device device) {
  std::optional<kvrope::Fault> fault;
  {
    py::gil_scoped_release no_gil;
    fault = kvrope::last_fault(device);
  }
  if (!fault) return py::none();
  return py::make_tuple(fault->kind, fault->argument, fault->row, fault->value);
}

at::Tensor build_cos_sin(int64_t rotary_dim, int64_t max_position, double base,
                         const std::optional<kvrope::RopeScaling>& scaling, bool full_width, bool is_neox,
                         at::ScalarType dtype, c10::Device device) {
  return kvrope::build_cos_sin(rotary_dim, max_position, base, scaling, {full_width, is_neox, dtype, device});
}

void bind_cos_sin_table(py::module_& m) {
  using Scaling = kvrope::RopeScaling;
  py::class_<Scaling>(m, "RopeScaling")
      .def(py::init<>())
      .def_readwrite("rope_type", &Scaling::rope_type)
      .def_readwrite("rope_theta", &Scaling::rope_theta)
      .def_readwrite("factor", &Scaling::factor)
      .def_readwrite("original_max_position_embeddings", &Scaling::original_max_position_embeddings)
      .def_readwrite("max_position_embeddings", &Scaling::max_position_embeddings)
      .def_readwrite("attention_factor", &Scaling::attention_factor)
      .def_readwrite("mscale", &Scaling::mscale)
      .def_readwrite("mscale_all_dim", &Scaling::mscale_all_dim)
      .def_readwrite("beta_fast", &Scaling::beta_fast)
      .def_readwrite("beta_slow", &Scaling::beta_slow)
      .def_readwrite("truncate", &Scaling::truncate)
      .def_readwrite("low_freq_factor", &Scaling::low_freq_factor)
      .def_readwrite("high_freq_factor", &Scaling::high_freq_factor)
      .def_readwrite("short_factor", &Scaling::short_factor)
      .def_readwrite("long_factor", &Scaling::long_factor)
      .def_readwrite("partial_rotary_factor", &Scaling::partial_rotary_factor);
  m.def("build_cos_sin", torch::wrap_pybind_function_no_gil(build_cos_sin));
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.attr("__version__") = KVROPE_VERSION;
  m.attr("has_cuda") = static_cast<bool>(KVROPE_HAS_CUDA);
  m.def("last_fault", torch::wrap_pybind_function(last_fault), py::arg("device"));
  m.def("check", torch::wrap_pybind_function_no_gil(kvrope::check), py::arg("device"));
  bind_operator<FusedOperator<kvrope::FusedSignature>::call>(m, "fused_qk_rope_reshape_and_cache");
  bind_operator<TypedOperator<kRope, kvrope::RopeSignature>::call>(m, "rope");
  bind_operator<TypedOperator<kReshapeAndCache, kvrope::ReshapeAndCacheSignature>::call>(m,
                                                                                         "reshape_and_cache");
  bind_cos_sin_table(m);
}
