// Checks of arguments. Error messages contain the expected and the actual array.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
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

inline py::ssize_t ssize(size_t n) { return static_cast<py::ssize_t>(n); }

inline size_t length(const py::array& array) {
  return array.ndim() ? static_cast<size_t>(array.shape(0)) : 0;
}

// The core sorts ids with 32-bit indices, so their number must be below 2^31.
inline size_t count_ids(const py::array& ids) {
  checked<int64_t>(ids, "ids", {-1});
  const size_t n = length(ids);
  if (n >= (size_t{1} << 31)) throw py::value_error("ids: 2^31 or more in one call; split it");
  return n;
}

inline uint32_t count_shards(int64_t shards) {
  if (shards < 1 || shards > 65536) {
    throw py::value_error("shards " + std::to_string(shards) + ": must be in 1..65536");
  }
  return static_cast<uint32_t>(shards);
}

inline size_t check_dim(int64_t dim) {
  if (dim < 1 || dim > (1 << 20)) {
    throw py::value_error("dim " + std::to_string(dim) + ": must be in 1..1048576");
  }
  return static_cast<size_t>(dim);
}

// A numpy array that takes over the memory of a vector, without a copy.
inline py::array_t<int64_t> to_array(std::vector<int64_t>&& values) {
  auto* kept = new std::vector<int64_t>(std::move(values));
  const py::capsule free(kept, [](void* p) { delete static_cast<std::vector<int64_t>*>(p); });
  return py::array_t<int64_t>(ssize(kept->size()), kept->data(), free);
}

// Releases the GIL for large work only. A release may switch to another thread and then wait for
// it: measured on a server with two cores, 70 us, as long as the work for 4,000 rows.
class Unlocked {
 public:
  explicit Unlocked(size_t floats) {
    if (floats > kSmall) release_.emplace();
  }

 private:
  static constexpr size_t kSmall = 100'000;
  std::optional<py::gil_scoped_release> release_;
};

// The contiguous buffer of a Python object.
class View {
 public:
  explicit View(py::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw py::error_already_set();
  }
  ~View() { PyBuffer_Release(&view_); }
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  const char* data() const { return static_cast<const char*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len); }

 private:
  Py_buffer view_;
};

}  // namespace edl
