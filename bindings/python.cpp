// kvrope._C: what Python needs besides the torch operator, which loading this module registers.
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include "fault.h"

namespace py = pybind11;

namespace {

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

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.attr("__version__") = KVROPE_VERSION;
  m.attr("has_cuda") = static_cast<bool>(KVROPE_HAS_CUDA);
  m.def("last_fault", torch::wrap_pybind_function(last_fault), py::arg("device"));
  m.def("check", torch::wrap_pybind_function_no_gil(kvrope::check), py::arg("device"));
}
