// Python bindings for ids: owners, unique ids, and copies between rows and positions.
#include "bindings.h"

#include <cstring>

#include "arrays.h"
#include "hash.h"
#include "ids.h"

namespace py = pybind11;
using Array = py::array;
using edl::checked;
using edl::count_ids;
using edl::count_shards;
using edl::length;
using edl::ssize;
using edl::to_array;

namespace {

py::array_t<int32_t> owner(const Array& ids, int64_t shards) {
  const size_t n = count_ids(ids);
  const uint32_t s = count_shards(shards);
  py::array_t<int32_t> out(ssize(n));
  const auto* from = static_cast<const int64_t*>(ids.data());
  int32_t* to = out.mutable_data();
  py::gil_scoped_release release;
  for (size_t i = 0; i < n; ++i) {
    to[i] = static_cast<int32_t>(edl::owner_of_hash(edl::hash_id(from[i]), s));
  }
  return out;
}

py::tuple unique_partition(const Array& ids, int64_t shards) {
  const size_t n = count_ids(ids);
  const uint32_t s = count_shards(shards);
  py::array_t<int64_t> inverse(ssize(n));
  const auto* from = static_cast<const int64_t*>(ids.data());
  int64_t* to = inverse.mutable_data();
  edl::Partition result;
  {
    py::gil_scoped_release release;
    result = edl::unique_partition(from, n, s, to);
  }
  return py::make_tuple(to_array(std::move(result.unique)), to_array(std::move(result.offsets)),
                        inverse);
}

void gather(const Array& rows, const Array& inverse, const Array& out) {
  const auto* from = checked<float>(rows, "rows", {-1, -1});
  const auto* index = checked<int64_t>(inverse, "inverse", {-1});
  const size_t n = length(inverse), dim = static_cast<size_t>(rows.shape(1));
  auto* to = checked<float>(out, "out", {ssize(n), ssize(dim)}, true);
  const size_t rows_n = length(rows);
  bool good;
  {
    py::gil_scoped_release release;
    good = edl::gather(from, rows_n, index, n, dim, to);
  }
  if (!good) throw py::index_error("inverse: an index outside [0, " + std::to_string(rows_n) + ")");
}

void scatter(const Array& grads, const Array& inverse, const Array& out, bool zero) {
  const auto* from = checked<float>(grads, "grads", {-1, -1});
  const size_t n = length(grads), dim = static_cast<size_t>(grads.shape(1)), m = length(out);
  const auto* index = checked<int64_t>(inverse, "inverse", {ssize(n)});
  auto* to = checked<float>(out, "out", {-1, ssize(dim)}, true);
  bool good;
  {
    py::gil_scoped_release release;
    if (zero) std::memset(to, 0, m * dim * sizeof(float));
    good = edl::scatter_add(from, index, n, dim, to, m);
  }
  if (!good) throw py::index_error("inverse: an index outside [0, " + std::to_string(m) + ")");
}

}  // namespace

void bind_ids(py::module_& m) {
  m.def("owner", &owner, py::arg("ids"), py::arg("shards"));
  m.def("unique_partition", &unique_partition, py::arg("ids"), py::arg("shards"));
  m.def("gather", &gather, py::arg("rows"), py::arg("inverse"), py::arg("out"));
  m.def("scatter_sum", [](const Array& g, const Array& i, const Array& o) { scatter(g, i, o, true); },
        py::arg("grads"), py::arg("inverse"), py::arg("out"));
  m.def("scatter_add", [](const Array& g, const Array& i, const Array& o) { scatter(g, i, o, false); },
        py::arg("grads"), py::arg("inverse"), py::arg("out"));
}
