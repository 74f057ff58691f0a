// Python bindings of the core: check arrays, release the GIL, call.

#include <fcntl.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "arrays.h"
#include "bindings.h"
#include "initializer.h"
#include "numerics.h"
#include "optimizer.h"
#include "table.h"

namespace py = pybind11;
using Array = py::array;
using Hyper = std::map<std::string, double>;
using edl::Unlocked;
using edl::check_dim;
using edl::checked;
using edl::count_ids;
using edl::length;
using edl::ssize;
using edl::to_array;

namespace {

std::unique_ptr<edl::Table> make_table(const std::string& name, int64_t dim,
                                       const std::string& initializer, const Hyper& args,
                                       int64_t seed, const edl::Optimizer* optimizer,
                                       int64_t num_embeddings, int64_t min_count,
                                       int64_t max_age, int64_t max_rows, int64_t max_bytes,
                                       const std::string& dtype, const std::string& folder) {
  const std::pair<const char*, int64_t> sizes[] = {{"num_embeddings", num_embeddings},
                                                   {"min_count", min_count},
                                                   {"max_age", max_age},
                                                   {"max_rows", max_rows},
                                                   {"max_bytes", max_bytes}};
  for (const auto& [what, value] : sizes) {
    if (value < 0 || value > (int64_t{1} << 62)) {
      throw py::value_error("table " + name + ": " + what + " " + std::to_string(value) +
                            ": must be 0 or more");
    }
  }
  if (min_count > int64_t{edl::Counter::kMostCount}) {
    throw py::value_error("table " + name + ": min_count " + std::to_string(min_count) +
                          ": must be " + std::to_string(edl::Counter::kMostCount) + " or less");
  }
  const edl::TableOptions options{num_embeddings, min_count, max_age,
                                  max_rows,       max_bytes, edl::dtype_of(dtype), folder};
  return std::make_unique<edl::Table>(name, check_dim(dim), initializer, args, seed, optimizer,
                                      options);
}

py::array_t<float> pull(edl::Table& table, const Array& ids, bool read_only) {
  const size_t n = count_ids(ids);
  py::array_t<float> out({ssize(n), ssize(table.dim())});
  auto* to = reinterpret_cast<char*>(out.mutable_data());
  const auto* from = static_cast<const int64_t*>(ids.data());
  const Unlocked unlocked(n * table.dim());
  table.pull(from, n, to, edl::Dtype::kFloat, read_only);
  return out;
}

void push(edl::Table& table, const Array& ids, const Array& grads, double lr, int64_t step) {
  const size_t n = count_ids(ids);
  const auto* values = checked<float>(grads, "grads", {ssize(n), ssize(table.dim())});
  if (step < 1) throw py::value_error("step " + std::to_string(step) + ": counts from 1");
  const auto* from = static_cast<const int64_t*>(ids.data());
  const Unlocked unlocked(n * table.dim());
  table.push(from, values, n, lr, step);
}

void load(edl::Table& table, const Array& ids, const Array& vectors, const py::object& slots,
          const py::object& last_used, const py::object& count) {
  const auto n = ssize(count_ids(ids)), dim = ssize(table.dim());
  edl::Chunk rows{};
  rows.ids = checked<int64_t>(ids, "ids", {n});
  rows.vectors = checked<float>(vectors, "vectors", {n, dim});
  if (!slots.is_none()) {
    rows.slots = checked<float>(slots.cast<Array>(), "slots", {n, ssize(table.slots()), dim});
  }
  if (!last_used.is_none()) {
    rows.last_used = checked<int64_t>(last_used.cast<Array>(), "last_used", {n});
  }
  if (!count.is_none()) rows.count = checked<int64_t>(count.cast<Array>(), "count", {n});
  py::gil_scoped_release release;
  table.load(rows, static_cast<size_t>(n));
}

py::tuple scan(const edl::Table& table, int64_t cursor, int64_t max_rows) {
  if (max_rows < 1) throw py::value_error("max_rows: must be 1 or more");
  const auto most = ssize(std::min(static_cast<size_t>(max_rows), table.size()));
  py::array_t<int64_t> ids(most);
  py::array_t<float> vectors({most, ssize(table.dim())});
  auto* to_ids = ids.mutable_data();
  auto* to_vectors = vectors.mutable_data();
  size_t given;
  {
    py::gil_scoped_release release;
    given = table.scan(&cursor, static_cast<size_t>(most), to_ids, to_vectors);
  }
  const py::slice part(0, ssize(given), 1);
  return py::make_tuple(ids[part], vectors[part], cursor);
}

py::tuple most_updated(const edl::Table& table, int64_t most) {
  if (most < 1) throw py::value_error("most: must be 1 or more");
  std::vector<std::pair<uint32_t, int64_t>> found;
  {
    py::gil_scoped_release release;
    found = table.most_updated(static_cast<size_t>(most));
  }
  py::array_t<int64_t> ids(ssize(found.size())), count(ssize(found.size()));
  for (size_t i = 0; i < found.size(); ++i) {
    count.mutable_at(i) = found[i].first;
    ids.mutable_at(i) = found[i].second;
  }
  return py::make_tuple(ids, count);
}

py::object next_chunk(edl::Table& table, int64_t max_rows) {
  if (max_rows < 1) throw py::value_error("max_rows: must be 1 or more");
  const size_t most = std::min(static_cast<size_t>(max_rows), table.snapshot_left());
  if (most == 0) return py::none();
  const auto m = ssize(most), dim = ssize(table.dim()), k = ssize(table.slots());
  py::array_t<int64_t> ids(m), last_used(m), count(m);
  py::array_t<float> vectors({m, dim}), slots({m, k, dim});
  const edl::Chunk out{ids.mutable_data(), vectors.mutable_data(), slots.mutable_data(),
                       last_used.mutable_data(), count.mutable_data()};
  size_t given;
  {
    py::gil_scoped_release release;
    given = table.next_chunk(most, out);
  }
  const py::slice rows(0, ssize(given), 1);
  return py::make_tuple(ids[rows], vectors[rows], slots[rows], last_used[rows], count[rows]);
}

void load_counts(edl::Table& table, const Array& ids, const Array& count, const Array& last_used) {
  const auto n = ssize(count_ids(ids));
  const edl::CountChunk counts{checked<int64_t>(ids, "ids", {n}),
                               checked<int64_t>(count, "count", {n}),
                               checked<int64_t>(last_used, "last_used", {n})};
  py::gil_scoped_release release;
  table.load_counts(counts, static_cast<size_t>(n));
}

py::object next_counts(edl::Table& table, int64_t max_ids) {
  if (max_ids < 1) throw py::value_error("max_ids: must be 1 or more");
  const size_t most = std::min(static_cast<size_t>(max_ids), table.counts_left());
  if (most == 0) return py::none();
  py::array_t<int64_t> ids(ssize(most)), count(ssize(most)), last_used(ssize(most));
  const edl::CountChunk out{ids.mutable_data(), count.mutable_data(), last_used.mutable_data()};
  size_t given;
  {
    py::gil_scoped_release release;
    given = table.next_counts(most, out);
  }
  const py::slice part(0, ssize(given), 1);
  return py::make_tuple(ids[part], count[part], last_used[part]);
}

py::array_t<int64_t> evict(edl::Table& table, int64_t step, bool aged) {
  std::vector<int64_t> removed;
  {
    py::gil_scoped_release release;
    removed = table.evict(step, aged);
  }
  return to_array(std::move(removed));
}

void prepare(edl::Table& table, const Array& ids) {
  const size_t n = count_ids(ids);
  const auto* from = static_cast<const int64_t*>(ids.data());
  const Unlocked unlocked(n);
  table.prepare(from, n);
}

void remove_rows(edl::Table& table, const Array& ids) {
  const size_t n = count_ids(ids);
  const auto* from = static_cast<const int64_t*>(ids.data());
  py::gil_scoped_release release;
  table.remove(from, n);
}

py::array_t<float> init_rows(const std::string& name, int64_t seed, const std::string& kind,
                             const Hyper& args, const Array& ids, int64_t dim,
                             const std::string& dtype) {
  const size_t n = count_ids(ids), d = check_dim(dim);
  const edl::Initializer initializer(name, seed, kind, args, d);
  const edl::Dtype stored = edl::dtype_of(dtype);
  std::vector<char> row(edl::bytes_of(stored, d));
  py::array_t<float> out({ssize(n), ssize(d)});
  const auto* from = static_cast<const int64_t*>(ids.data());
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  for (size_t i = 0; i < n; ++i, to += d) {
    initializer.fill(from[i], to);
    if (stored == edl::Dtype::kFloat) continue;
    edl::narrow(stored, to, row.data(), d);
    edl::widen(stored, row.data(), to, d);
  }
  return out;
}

void dense_apply(const edl::Optimizer& optimizer, const Array& param, const Array& grad,
                 const std::vector<Array>& slots, double lr, int64_t step) {
  edl::Span span{};
  span.value = checked<float>(param, "param", {-1}, true);
  const auto n = ssize(length(param));
  span.grad = checked<float>(grad, "grad", {n});
  if (slots.size() != optimizer.slots().size()) {
    throw py::value_error("slots: " + optimizer.kind() + " needs " +
                          std::to_string(optimizer.slots().size()) + ", got " +
                          std::to_string(slots.size()));
  }
  if (step < 1) throw py::value_error("step " + std::to_string(step) + ": counts from 1");
  for (size_t k = 0; k < slots.size(); ++k) {
    span.slots[k] = checked<float>(slots[k], "slot", {n}, true);
  }
  span.first = step == 1;
  const edl::Scalars scalars = optimizer.scalars(lr, step);
  const Unlocked unlocked(static_cast<size_t>(n));
  const edl::FlushDenormals flush;
  optimizer.apply(scalars, &span, 1, static_cast<size_t>(n));
}

int64_t first_nonfinite(const Array& values) {
  const auto* from = checked<float>(values, "values", {-1});
  const size_t n = length(values);
  const Unlocked unlocked(n);
  return edl::first_nonfinite(from, n);
}

template <void (*narrow)(const float*, uint16_t*, size_t)>
py::array_t<uint16_t> narrowed(const Array& values) {
  const auto* from = checked<float>(values, "values", {-1});
  const size_t n = length(values);
  py::array_t<uint16_t> out(ssize(n));
  auto* to = out.mutable_data();
  const Unlocked unlocked(n);
  narrow(from, to, n);
  return out;
}

template <void (*widen)(const uint16_t*, float*, size_t)>
py::array_t<float> widened(const Array& values) {
  const auto* from = checked<uint16_t>(values, "values", {-1});
  const size_t n = length(values);
  py::array_t<float> out(ssize(n));
  auto* to = out.mutable_data();
  const Unlocked unlocked(n);
  widen(from, to, n);
  return out;
}

// Waits until a part of a file is on the disk. Does not commit the file system as fdatasync() does,
// for which appends to other files would wait.
void write_back(int fd, int64_t start, int64_t size) {
  int error;
  {
    const py::gil_scoped_release release;
#if defined(__linux__)
    constexpr unsigned kAll =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    error = sync_file_range(fd, start, size, kAll) == 0 ? 0 : errno;
#else
    error = ENOSYS;
#endif
    if (error == ENOSYS) error = fsync(fd) == 0 ? 0 : errno;
  }
  if (error == 0) return;
  errno = error;
  PyErr_SetFromErrno(PyExc_OSError);
  throw py::error_already_set();
}

void tune_malloc() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest value that glibc accepts
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const std::system_error& error) {
      const auto about = py::make_tuple(error.code().value(), error.what());
      PyErr_SetObject(PyExc_OSError, about.ptr());
    }
  });
  m.doc() = "Embedding tables, optimizers and id handling; see _core.pyi.";

  py::class_<edl::Optimizer>(m, "Optimizer")
      .def(py::init<const std::string&, const Hyper&>(), py::arg("kind"), py::arg("hyper"))
      .def_property_readonly("kind", &edl::Optimizer::kind)
      .def_property_readonly("hyper", &edl::Optimizer::hyper)
      .def_property_readonly("slots", &edl::Optimizer::slots)
      .def_property_readonly("slot_initial", &edl::Optimizer::slot_initial);

  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<edl::Table>(m, "Table")
      .def(py::init(&make_table), py::arg("name"), py::arg("dim"), py::arg("initializer"),
           py::arg("initializer_args"), py::arg("seed"), py::arg("optimizer").none(true),
           py::arg("num_embeddings") = 0, py::arg("min_count") = 0, py::arg("max_age") = 0,
           py::arg("max_rows") = 0, py::arg("max_bytes") = 0, py::arg("dtype") = "fp32",
           py::arg("folder") = "")
      .def("pull", &pull, py::arg("ids"), py::arg("read_only") = false)
      .def("push", &push, py::arg("ids"), py::arg("grads"), py::arg("lr"), py::arg("step"))
      .def("load", &load, py::arg("ids"), py::arg("vectors"), py::arg("slots") = py::none(),
           py::arg("last_used") = py::none(), py::arg("count") = py::none())
      .def("load_counts", &load_counts, py::arg("ids"), py::arg("count"), py::arg("last_used"))
      .def("prepare", &prepare, py::arg("ids"))
      .def("evict", &evict, py::arg("step"), py::arg("aged") = true)
      .def("remove", &remove_rows, py::arg("ids"))
      .def("begin_snapshot", &edl::Table::begin_snapshot)
      .def("next_chunk", &next_chunk, py::arg("max_rows"))
      .def("next_counts", &next_counts, py::arg("max_ids"))
      .def("end_snapshot", &edl::Table::end_snapshot, unlocked)
      .def("scan", &scan, py::arg("cursor"), py::arg("max_rows"))
      .def("most_updated", &most_updated, py::arg("most"))
      .def_property_readonly("dim", &edl::Table::dim)
      .def_property_readonly("bound", &edl::Table::bound)
      .def_property_readonly("size", &edl::Table::size)
      .def_property_readonly("counted", &edl::Table::counted)
      .def_property_readonly("bytes", &edl::Table::bytes)
      .def_property_readonly("disk_bytes", &edl::Table::disk_bytes);

  m.def("init_rows", &init_rows, py::arg("name"), py::arg("seed"), py::arg("initializer"),
        py::arg("args"), py::arg("ids"), py::arg("dim"), py::arg("dtype") = "fp32");
  bind_ids(m);
  bind_requests(m);
  bind_shared_memory(m);
  bind_calls(m);
  bind_client(m);
  bind_text(m);
  m.def("dense_apply", &dense_apply, py::arg("optimizer"), py::arg("param"), py::arg("grad"),
        py::arg("slots"), py::arg("lr"), py::arg("step"));
  m.def("first_nonfinite", &first_nonfinite, py::arg("values"));
  m.def("to_bfloat16", &narrowed<edl::to_bfloat16>, py::arg("values"));
  m.def("from_bfloat16", &widened<edl::from_bfloat16>, py::arg("values"));
  m.def("to_half", &narrowed<edl::to_half>, py::arg("values"));
  m.def("from_half", &widened<edl::from_half>, py::arg("values"));
  m.def("write_back", &write_back, py::arg("fd"), py::arg("start"), py::arg("size"));
  m.def("tune_malloc", &tune_malloc);
}
