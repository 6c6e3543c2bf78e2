// Guards, which check in each call of a model whether tensors and Python objects are unchanged.

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>

#include "bindings.h"

namespace py = pybind11;

namespace poptorch_emu {
namespace {

const at::Tensor& tensor_at(const py::list& tensors, py::ssize_t i) {
  PyObject* const object = PyList_GET_ITEM(tensors.ptr(), i);
  if (!THPVariable_Check(object)) throw py::type_error("Tensors are expected.");
  return THPVariable_Unpack(object);
}

int64_t number_at(const py::list& numbers, py::ssize_t i) {
  const int64_t number = PyLong_AsLongLong(PyList_GET_ITEM(numbers.ptr(), i));
  if (number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return number;
}

void check_lengths(const py::list& some, const py::list& others) {
  if (py::len(some) != py::len(others)) throw py::value_error("The lists differ in length.");
}

// Returns whether each tensor still has its version (0 if made in inference mode) and address.
bool have_states(const py::list& tensors, const py::list& versions, const py::list& places) {
  check_lengths(tensors, versions);
  check_lengths(tensors, places);
  for (py::ssize_t i = 0; i < PyList_GET_SIZE(tensors.ptr()); ++i) {
    const at::Tensor& tensor = tensor_at(tensors, i);
    const int64_t version = tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
    const auto place = reinterpret_cast<int64_t>(tensor.const_data_ptr());
    if (version != number_at(versions, i) || place != number_at(places, i)) return false;
  }
  return true;
}

// Returns whether the `requires_grad` of each tensor equals its flag.
bool have_flags(const py::list& tensors, const py::list& flags) {
  check_lengths(tensors, flags);
  for (py::ssize_t i = 0; i < PyList_GET_SIZE(tensors.ptr()); ++i) {
    const bool is_trained = PyList_GET_ITEM(flags.ptr(), i) == Py_True;
    if (tensor_at(tensors, i).requires_grad() != is_trained) return false;
  }
  return true;
}

// Returns whether each dictionary still holds the given object under the given key.
bool are_held(const py::list& holders, const py::list& keys, const py::list& objects) {
  check_lengths(holders, keys);
  check_lengths(holders, objects);
  for (py::ssize_t i = 0; i < PyList_GET_SIZE(holders.ptr()); ++i) {
    PyObject* const held =
        PyDict_GetItemWithError(PyList_GET_ITEM(holders.ptr(), i), PyList_GET_ITEM(keys.ptr(), i));
    if (held == nullptr && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (held != PyList_GET_ITEM(objects.ptr(), i)) return false;
  }
  return true;
}

bool is_plain_tensor(PyObject* object) {
  return reinterpret_cast<PyObject*>(Py_TYPE(object)) == THPVariableClass;
}

// Returns whether both tuples hold ordinary CPU tensors, and `others` are contiguous with the
// shapes and types of `known`.
bool are_like(const py::tuple& known, const py::tuple& others) {
  if (py::len(known) != py::len(others)) return false;
  for (py::ssize_t i = 0; i < PyTuple_GET_SIZE(known.ptr()); ++i) {
    PyObject* const old_object = PyTuple_GET_ITEM(known.ptr(), i);
    PyObject* const new_object = PyTuple_GET_ITEM(others.ptr(), i);
    if (!is_plain_tensor(old_object) || !is_plain_tensor(new_object)) return false;
    const at::Tensor& before = THPVariable_Unpack(old_object);
    const at::Tensor& now = THPVariable_Unpack(new_object);
    if (before.is_nested() || now.is_nested() || now.layout() != at::kStrided || !now.is_cpu() ||
        now.scalar_type() != before.scalar_type() || now.sizes() != before.sizes() ||
        !now.is_contiguous()) {
      return false;
    }
  }
  return true;
}

}  // namespace

void bind_guards(py::module_& m) {
  m.def("have_states", &have_states);
  m.def("have_flags", &have_flags);
  m.def("are_held", &are_held);
  m.def("are_like", &are_like);
}

}  // namespace poptorch_emu
