// Python bindings for whole requests: all tables of a pull or push in one call, from the received
// buffers to the buffers to send. The GIL is released once, for the whole request.
#include "bindings.h"

#include <cmath>
#include <cstring>
#include <pybind11/stl.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "arrays.h"
#include "numerics.h"
#include "table.h"

namespace py = pybind11;
using Array = py::array;
using edl::checked;
using edl::count_ids;
using edl::Dtype;
using edl::ssize;
using edl::to_array;
using edl::Unlocked;
using edl::View;

namespace {

constexpr size_t kMostIds = size_t{1} << 31;

// A buffer as numbers of type T, copied only if it is not aligned.
template <typename T>
class Numbers {
 public:
  explicit Numbers(py::handle buffer) : view_(buffer) {
    n_ = view_.size() / sizeof(T);
    if (reinterpret_cast<uintptr_t>(view_.data()) % alignof(T) == 0) {
      data_ = reinterpret_cast<const T*>(view_.data());
      return;
    }
    copy_.resize(n_);
    std::memcpy(copy_.data(), view_.data(), n_ * sizeof(T));
    data_ = copy_.data();
  }
  const T* data() const { return data_; }
  size_t size() const { return n_; }
  size_t bytes() const { return view_.size(); }
  bool is_view() const { return copy_.empty(); }

 private:
  View view_;
  std::vector<T> copy_;
  const T* data_ = nullptr;
  size_t n_ = 0;
};

using Ids = Numbers<int64_t>;

size_t checked_ids(const Ids& ids) {
  if (ids.bytes() % sizeof(int64_t) != 0) {
    throw py::value_error("ids of " + std::to_string(ids.bytes()) +
                          " bytes: not a whole number of int64");
  }
  if (ids.size() >= kMostIds) throw py::value_error("ids: 2^31 or more in one call; split it");
  return ids.size();
}

template <typename T>
py::array_t<T> array_of(const Numbers<T>& numbers, py::handle buffer,
                        std::vector<py::ssize_t> shape) {
  // numpy copies the numbers if no owner is given.
  return numbers.is_view() ? py::array_t<T>(std::move(shape), numbers.data(), buffer)
                           : py::array_t<T>(std::move(shape), numbers.data());
}

// The buffer of rows to send: in `room`, from byte `used` on, or in memory of its own if the room is
// too small.
py::array rows_buffer(const std::optional<py::array_t<uint8_t>>& room, size_t* used, Dtype kind,
                      size_t n, size_t dim) {
  const py::dtype dtype =
      kind == Dtype::kFloat ? py::dtype::of<float>() : py::dtype::of<uint16_t>();
  const std::vector<py::ssize_t> shape{ssize(n), ssize(dim)};
  const size_t begin = (*used + 63) / 64 * 64, bytes = edl::bytes_of(kind, n * dim);
  if (!room || begin + bytes > static_cast<size_t>(room->size())) return py::array(dtype, shape);
  *used = begin + bytes;
  return py::array(dtype, shape, room->data() + begin, *room);
}

py::list pull_tables(const py::sequence& lookups, const std::string& dtype, bool read_only,
                     const std::optional<py::array_t<uint8_t>>& room) {
  struct Lookup {
    edl::Table* table;
    size_t n;
    const int64_t* ids;
    char* to;
  };
  const Dtype kind = edl::wire_dtype_of(dtype);
  std::deque<Ids> buffers;
  std::vector<Lookup> work;
  py::list rows;
  size_t floats = 0, used = 0;
  for (const py::handle each : lookups) {
    const auto pair = each.cast<std::pair<edl::Table*, py::object>>();
    buffers.emplace_back(pair.second);
    const size_t n = checked_ids(buffers.back()), dim = pair.first->dim();
    py::array out = rows_buffer(room, &used, kind, n, dim);
    work.push_back({pair.first, n, buffers.back().data(), static_cast<char*>(out.mutable_data())});
    rows.append(std::move(out));
    floats += n * dim;
  }
  const Unlocked unlocked(floats);
  for (const Lookup& each : work) each.table->pull(each.ids, each.n, each.to, kind, read_only);
  return rows;
}

// The gradient in float32, as a view of the buffer if possible.
py::array_t<float> gradient_of(const edl::Table& table, py::handle buffer, Dtype dtype, size_t n) {
  const std::vector<py::ssize_t> shape{ssize(n), ssize(table.dim())};
  const size_t size = n * table.dim(), wanted = edl::bytes_of(dtype, size);
  const Numbers<char> raw(buffer);
  if (raw.bytes() != wanted) {
    throw py::value_error("table " + table.name() + ": gradient of " +
                          std::to_string(raw.bytes()) + " bytes; " + std::to_string(n) +
                          " ids need " + std::to_string(wanted));
  }
  if (dtype == Dtype::kFloat) return array_of(Numbers<float>(buffer), buffer, shape);
  py::array_t<float> out(shape);
  const Numbers<uint16_t> narrow(buffer);
  float* to = out.mutable_data();
  const Unlocked unlocked(size);
  dtype == Dtype::kHalf ? edl::from_half(narrow.data(), to, size)
                        : edl::from_bfloat16(narrow.data(), to, size);
  return out;
}

py::list decode_gradients(const py::sequence& pushes) {
  struct Push {
    const edl::Table* table;
    const int64_t* ids;
    const float* values;
    size_t n;
  };
  std::vector<Push> work;
  py::list decoded;
  size_t floats = 0;
  for (const py::handle each : pushes) {
    const auto parts = each.cast<py::tuple>();
    const auto* table = parts[0].cast<edl::Table*>();
    const py::object ids_buffer = parts[1];
    const Ids numbers(ids_buffer);
    const size_t n = checked_ids(numbers);
    py::array_t<int64_t> ids = array_of(numbers, ids_buffer, {ssize(n)});
    const py::object values_buffer = parts[2];
    const Dtype dtype = edl::wire_dtype_of(parts[3].cast<std::string>());
    py::array_t<float> values = gradient_of(*table, values_buffer, dtype, n);
    work.push_back({table, ids.data(), values.data(), n});
    floats += n * table->dim();
    decoded.append(py::make_tuple(std::move(ids), std::move(values)));
  }
  const Push* failed = nullptr;
  int64_t bad = -1;
  {
    const Unlocked unlocked(floats);
    for (const Push& push : work) {
      push.table->check_ids(push.ids, push.n);
      bad = edl::first_nonfinite(push.values, push.n * push.table->dim());
      if (bad < 0) continue;
      failed = &push;
      break;
    }
  }
  if (failed) {
    const auto row = static_cast<size_t>(bad) / failed->table->dim();
    throw py::value_error("table " + failed->table->name() + ": the gradient of id " +
                          std::to_string(failed->ids[row]) + " has the value " +
                          std::to_string(failed->values[bad]) + "; it must be finite");
  }
  return decoded;
}

py::list push_tables(const py::sequence& pushes, bool evict) {
  struct Push {
    edl::Table* table;
    const int64_t* ids;
    const float* values;
    size_t n;
    double rate;
    int64_t step;
    bool aged;
    std::vector<int64_t> removed;
  };
  std::vector<Push> work;
  size_t floats = 0;
  for (const py::handle each : pushes) {
    const auto parts = each.cast<py::tuple>();
    Push push{};
    push.table = parts[0].cast<edl::Table*>();
    const auto ids = parts[1].cast<Array>();
    push.n = count_ids(ids);
    push.ids = static_cast<const int64_t*>(ids.data());
    push.values = checked<float>(parts[2].cast<Array>(), "grads",
                                 {ssize(push.n), ssize(push.table->dim())});
    push.rate = parts[3].cast<double>();
    push.step = parts[4].cast<int64_t>();
    if (push.step < 1) {
      throw py::value_error("step " + std::to_string(push.step) + ": counts from 1");
    }
    push.aged = parts[5].cast<bool>();
    floats += push.n * push.table->dim();
    work.push_back(std::move(push));
  }
  {
    const Unlocked unlocked(floats);
    for (Push& push : work) {
      push.table->push(push.ids, push.values, push.n, push.rate, push.step);
      if (evict) push.removed = push.table->evict(push.step, push.aged);
    }
  }
  py::list removed;
  for (Push& push : work) removed.append(to_array(std::move(push.removed)));
  return removed;
}

}  // namespace

void bind_requests(py::module_& m) {
  m.def("pull_tables", &pull_tables, py::arg("lookups"), py::arg("dtype") = "fp32",
        py::arg("read_only") = false, py::arg("room") = py::none());
  m.def("decode_gradients", &decode_gradients, py::arg("pushes"));
  m.def("push_tables", &push_tables, py::arg("pushes"), py::arg("evict") = true);
}
