// numpy arrays to pointers, checked: the message says what was expected and what came.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>
#include <vector>

namespace edl {

namespace py = pybind11;

inline std::string describe(const py::array& array) {
  std::string shape;
  for (py::ssize_t i = 0; i < array.ndim(); ++i) {
    shape += (i ? ", " : "") + std::to_string(array.shape(i));
  }
  const bool contiguous = array.flags() & py::array::c_style;
  return py::str(static_cast<py::object>(array.dtype())).cast<std::string>() + " of shape (" +
         shape + ")" + (contiguous ? "" : ", not contiguous") +
         (array.writeable() ? "" : ", read-only");
}

// The data of a C-contiguous array of T with the given shape; -1 stands for any length.
template <typename T>
T* checked(const py::array& array, const char* name, std::vector<py::ssize_t> shape,
           bool write = false) {
  bool good = py::isinstance<py::array_t<T, py::array::c_style>>(array) &&
              array.ndim() == static_cast<py::ssize_t>(shape.size()) &&
              (!write || array.writeable());
  for (size_t i = 0; good && i < shape.size(); ++i) {
    good = shape[i] < 0 || array.shape(static_cast<py::ssize_t>(i)) == shape[i];
  }
  if (!good) {
    std::string wanted;
    for (size_t i = 0; i < shape.size(); ++i) {
      wanted += (i ? ", " : "") + (shape[i] < 0 ? "any" : std::to_string(shape[i]));
    }
    throw py::value_error(std::string(name) + ": expected a contiguous " +
                          py::str(static_cast<py::object>(py::dtype::of<T>())).cast<std::string>() +
                          " array of shape (" + wanted + "), got " + describe(array));
  }
  return const_cast<T*>(static_cast<const T*>(array.data()));
}

}  // namespace edl
