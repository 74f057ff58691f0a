// Python bindings for columns of records: hashes, counts of texts, exact sums.
#include "bindings.h"

#include <memory>

#include "arrays.h"
#include "exact_sum.h"
#include "text.h"
#include "text_counts.h"

namespace py = pybind11;
using Array = py::array;
using edl::checked;
using edl::length;
using edl::ssize;
using edl::TextColumn;
using edl::to_array;
using edl::Unlocked;

namespace {

// A column of texts that keeps its buffers alive and has checked its offsets.
class Texts {
 public:
  Texts(py::handle offsets, py::handle data, py::handle valid, int64_t start, int64_t count,
        bool wide)
      : offsets_(offsets), data_(data) {
    if (!valid.is_none()) valid_ = std::make_unique<edl::View>(valid);
    const size_t width = wide ? 8 : 4;
    if (start < 0 || count < 0 || offsets_.size() / width < static_cast<size_t>(start + count + 1) ||
        (valid_ && valid_->size() < static_cast<size_t>(start + count + 7) / 8)) {
      throw py::value_error("texts: the buffers are shorter than the column");
    }
    column = {offsets_.data(), data_.data(),
              valid_ ? reinterpret_cast<const uint8_t*>(valid_->data()) : nullptr,
              static_cast<size_t>(start), static_cast<size_t>(count), wide};
    int64_t before = column.offset(0);
    bool good = before >= 0;
    for (size_t i = 1; i <= column.count; ++i) {
      const int64_t at = column.offset(i);
      good &= before <= at;
      before = at;
    }
    if (!good || static_cast<size_t>(before) > data_.size()) {
      throw py::value_error("texts: an offset is outside of the data");
    }
  }

  TextColumn column;

 private:
  edl::View offsets_, data_;
  std::unique_ptr<edl::View> valid_;
};

// False if the texts contain a byte above 127, so that their UTF-8 must be validated.
bool is_ascii(const Texts& texts) {
  const TextColumn& column = texts.column;
  const auto from = static_cast<size_t>(column.offset(0));
  const auto to = static_cast<size_t>(column.offset(column.count));
  const Unlocked unlocked((to - from) / 16);
  unsigned char any = 0;
  for (size_t i = from; i < to; ++i) any |= static_cast<unsigned char>(column.data[i]);
  return any < 128;
}

// One seed for all values, or one seed for each value.
const uint64_t* checked_seeds(const Array& seeds, size_t n) {
  return checked<uint64_t>(seeds, "seeds", {length(seeds) == 1 ? 1 : ssize(n)});
}

py::array_t<uint64_t> hash_texts(const Texts& texts, const Array& seeds) {
  const TextColumn& column = texts.column;
  const uint64_t* seed = checked_seeds(seeds, column.count);
  const size_t step = length(seeds) == 1 ? 0 : 1;
  py::array_t<uint64_t> out(ssize(column.count));
  uint64_t* to = out.mutable_data();
  const Unlocked unlocked(column.count * 16);
  for (size_t i = 0; i < column.count; ++i) {
    to[i] = column.has(i) ? edl::hash_text(column.at(i), seed[i * step])
                          : edl::hash_missing(seed[i * step]);
  }
  return out;
}

py::array_t<uint64_t> hash_integers(const Array& values, const py::object& missing,
                                    const Array& seeds) {
  const auto* from = checked<int64_t>(values, "values", {-1});
  const size_t n = length(values);
  const uint64_t* seed = checked_seeds(seeds, n);
  const size_t step = length(seeds) == 1 ? 0 : 1;
  const bool* lacks =
      missing.is_none() ? nullptr : checked<bool>(missing.cast<Array>(), "missing", {ssize(n)});
  py::array_t<uint64_t> out(ssize(n));
  uint64_t* to = out.mutable_data();
  const Unlocked unlocked(n * 4);
  for (size_t i = 0; i < n; ++i) to[i] = edl::hash_integer(from[i], seed[i * step]);
  for (size_t i = 0; lacks != nullptr && i < n; ++i) {
    if (lacks[i]) to[i] = edl::hash_missing(seed[i * step]);
  }
  return out;
}

py::array_t<int64_t> to_buckets(const Array& hashes, int64_t buckets) {
  const auto* from = checked<uint64_t>(hashes, "hashes", {-1});
  if (buckets < 1) throw py::value_error("buckets " + std::to_string(buckets) + ": must be 1 or more");
  const size_t n = length(hashes);
  py::array_t<int64_t> out(ssize(n));
  int64_t* to = out.mutable_data();
  const Unlocked unlocked(n);
  for (size_t i = 0; i < n; ++i) {
    // Multiply-shift, which avoids the division of a modulo.
    to[i] = static_cast<int64_t>(
        static_cast<unsigned __int128>(from[i]) * static_cast<uint64_t>(buckets) >> 64);
  }
  return out;
}

void add(edl::TextCounts& self, const Texts& texts, const py::object& counts) {
  const int64_t* times =
      counts.is_none()
          ? nullptr
          : checked<int64_t>(counts.cast<Array>(), "counts", {ssize(texts.column.count)});
  const py::gil_scoped_release release;
  self.add(texts.column, times);
}

py::array_t<int64_t> find(const edl::TextCounts& self, const Texts& texts) {
  py::array_t<int64_t> out(ssize(texts.column.count));
  int64_t* to = out.mutable_data();
  const py::gil_scoped_release release;
  self.find(texts.column, to);
  return out;
}

py::tuple taken(const edl::TextCounts& self, const std::vector<int64_t>& places) {
  std::string data;
  std::vector<int64_t> offsets, counts;
  {
    const py::gil_scoped_release release;
    self.take(places, &data, &offsets, &counts);
  }
  return py::make_tuple(to_array(std::move(offsets)), py::bytes(data), to_array(std::move(counts)));
}

py::tuple ranked(const edl::TextCounts& self, int64_t limit, int64_t min_count) {
  if (limit < 0) throw py::value_error("limit " + std::to_string(limit) + ": must be 0 or more");
  std::vector<int64_t> places;
  {
    const py::gil_scoped_release release;
    places = self.ranked(static_cast<size_t>(limit), min_count);
  }
  return taken(self, places);
}

py::tuple exact_sums(const Array& values) {
  const size_t n = length(values);
  const bool narrow = py::isinstance<py::array_t<float>>(values);
  const void* from = narrow ? static_cast<const void*>(checked<float>(values, "values", {-1}))
                            : checked<double>(values, "values", {-1});
  edl::Sums sums;
  {
    const Unlocked unlocked(n * 16);
    sums = narrow ? edl::exact_sums(static_cast<const float*>(from), n)
                  : edl::exact_sums(static_cast<const double*>(from), n);
  }
  return py::make_tuple(sums.count, sums.infinite, py::bytes(sums.sum), py::bytes(sums.squares));
}

}  // namespace

void bind_text(py::module_& m) {
  py::class_<Texts>(m, "Texts")
      .def(py::init<py::handle, py::handle, py::handle, int64_t, int64_t, bool>(),
           py::arg("offsets"), py::arg("data"), py::arg("valid"), py::arg("start"),
           py::arg("count"), py::arg("wide"))
      .def("__len__", [](const Texts& texts) { return texts.column.count; })
      .def_property_readonly("is_ascii", &is_ascii);
  py::class_<edl::TextCounts>(m, "TextCounts")
      .def(py::init<>())
      .def("add", &add, py::arg("texts"), py::arg("counts") = py::none())
      .def("find", &find, py::arg("texts"))
      .def("all", [](const edl::TextCounts& self) { return taken(self, self.all()); })
      .def("ranked", &ranked, py::arg("limit"), py::arg("min_count"))
      .def("__len__", &edl::TextCounts::size)
      .def_property_readonly("bytes", &edl::TextCounts::bytes)
      .def_property_readonly("total", &edl::TextCounts::total);
  m.def("hash_texts", &hash_texts, py::arg("texts"), py::arg("seeds"));
  m.def("hash_integers", &hash_integers, py::arg("values"), py::arg("missing"), py::arg("seeds"));
  m.def("to_buckets", &to_buckets, py::arg("hashes"), py::arg("buckets"));
  m.def("exact_sums", &exact_sums, py::arg("values"));
}
