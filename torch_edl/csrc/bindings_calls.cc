// Pulls and pushes of the steady state, from the received frames to the answer, in one call.
//
// A call that is unusual in any way is left to the interpreter: the functions return None before any
// change. Unusual are all errors, large calls, and what only some models have: 16-bit gradients,
// parameters without a gradient, buffers that are not float32. The fields of the messages are those
// of torch_edl/wire/{data_plane,pserver,tensor}.proto.
#include <pybind11/stl.h>

#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "bindings.h"
#include "messages.h"
#include "numerics.h"
#include "received_call.h"
#include "table.h"

namespace py = pybind11;
using edl::Answer;
using edl::Call;
using edl::Dtype;
using edl::Floats;
using edl::Frame;
using edl::kFloat;
using edl::kMostFrames;
using edl::kPull;
using edl::Memory;
using edl::Reader;
using edl::require;
using edl::ssize;
using edl::Table;
using edl::Tensor;
using edl::Unlocked;
using edl::Unusual;
using edl::Wire;
using edl::Writer;
using Ranges = std::vector<std::pair<size_t, size_t>>;

namespace {

struct Entry {
  const std::pair<py::object, Table*>* table = nullptr;
  const int64_t* ids = nullptr;
  size_t n = 0;
  py::object owner;  // of the ids
  const float* values = nullptr;
};

class ShardCalls {
 public:
  ShardCalls(std::string job, int64_t incarnation, std::string key, size_t piece_bytes)
      : job_(std::move(job)), incarnation_(incarnation), key_(std::move(key)),
        piece_bytes_(piece_bytes) {}

  void add_table(const std::string& name, py::object table, py::object core) {
    auto* found = core.cast<Table*>();
    tables_[name] = {std::move(table), found};
  }

  void set_dense(size_t size, Ranges trained, size_t groups) {
    dense_size_ = size;
    trained_ = std::move(trained);
    groups_ = groups;
  }

  // Calls `release` when the dense parameters were read.
  py::object answer_pull(const Call& call, int64_t version, const Floats& flat,
                         const py::object& release) const {
    bool dense = false, read_only = false, fenced = false;
    int64_t dense_version = 0, dtype = 0;
    std::vector<Entry> entries;
    Reader in(call.body);
    while (in.next()) {
      if (in.is(1, Wire::kBytes)) {
        require(!fenced && is_own(in.bytes()));
        fenced = true;
      } else if (in.is(2, Wire::kVarint)) {
        dense = in.number() != 0;
      } else if (in.is(3, Wire::kVarint)) {
        dense_version = in.number();
      } else if (in.is(4, Wire::kBytes)) {
        entries.push_back(entry(call, in.bytes(), entries, nullptr));
      } else if (in.is(5, Wire::kVarint)) {
        read_only = in.number() != 0;
      } else if (in.is(6, Wire::kVarint)) {
        dtype = in.number();
      } else {
        throw Unusual{};
      }
    }
    require(in.good() && fenced && (dtype == 0 || dtype == kFloat));
    Answer answer(call);
    Writer message;
    message.number(1, 1);
    message.number(2, version);
    if (dense && dense_version != version) {
      const auto size = static_cast<size_t>(flat.size());
      std::memcpy(answer.add(4 * size), flat.data(), 4 * size);
      message.message(3, answer.tensor(kFloat, {size}));
    }
    release();
    std::vector<char*> out;
    size_t floats = 0;
    for (const Entry& each : entries) {
      const Table& table = *each.table->second;
      table.check_ids(each.ids, each.n);
      out.push_back(answer.add(4 * each.n * table.dim()));
      message.message(4, answer.tensor(kFloat, {each.n, table.dim()}));
      floats += each.n * table.dim();
    }
    {
      const Unlocked unlocked(floats);
      for (size_t i = 0; i < entries.size(); ++i) {
        const Entry& each = entries[i];
        each.table->second->pull(each.ids, each.n, out[i], Dtype::kFloat, read_only);
      }
    }
    return answer.finish(message);
  }

  py::object decode_push(const Call& call) const {
    bool fenced = false, ranged = false;
    int64_t range[3] = {0, 0, 0}, version = 0, retired_before = 0;
    std::vector<double> rates;
    py::object dense = py::none();
    std::vector<Entry> entries;
    py::list tables;
    Reader in(call.body);
    while (in.next()) {
      if (in.is(1, Wire::kBytes)) {
        require(!fenced && is_own(in.bytes()));
        fenced = true;
      } else if (in.is(2, Wire::kBytes)) {
        require(!ranged);
        ranged = true;
        Reader each(in.bytes());
        while (each.next()) {
          bool known = false;
          for (uint32_t field = 1; field <= 3; ++field) {
            if (!each.is(field, Wire::kVarint)) continue;
            range[field - 1] = each.number();
            known = true;
          }
          require(known);
        }
        require(each.good());
      } else if (in.is(3, Wire::kVarint)) {
        version = in.number();
      } else if (in.is(4, Wire::kBytes)) {
        require(dense.is_none());
        dense = Tensor(call, in.bytes()).array({dense_size_});
      } else if (in.is(5, Wire::kBytes)) {
        std::string_view values;
        entries.push_back(entry(call, in.bytes(), entries, &values));
        tables.append(gradient(call, entries, values));
      } else if (in.is(6, Wire::kBytes)) {
        require(in.doubles(&rates, kMostFrames));
      } else if (in.is(7, Wire::kVarint)) {
        retired_before = in.number();
      } else {
        throw Unusual{};
      }
    }
    require(in.good() && fenced && range[0] >= 0 && retired_before >= 0 && are_sound(rates));
    require(is_sound(entries, dense.is_none() ? nullptr : dense.cast<Floats>().data()));
    return py::make_tuple(call.number, py::make_tuple(range[0], range[1], range[2]), version,
                          retired_before, rates, dense, tables,
                          py::bytes(call.body.data(), call.body.size()), call.lent);
  }

  Call open(const py::sequence& pieces, const Memory& memory, size_t most_bytes) const {
    return Call(pieces, memory, key_, piece_bytes_, most_bytes);
  }

 private:
  bool is_own(std::string_view fence) const {
    std::string_view job;
    int64_t incarnation = 0;
    Reader in(fence);
    while (in.next()) {
      if (in.is(1, Wire::kBytes)) {
        job = in.bytes();
      } else {
        require(in.is(2, Wire::kVarint));
        incarnation = in.number();
      }
    }
    return in.good() && job == job_ && incarnation == incarnation_;
  }

  // An entry of TableIds, or, with `values`, of TableGradient, whose numbers differ from there.
  Entry entry(const Call& call, std::string_view bytes, const std::vector<Entry>& before,
              std::string_view* values) const {
    const uint32_t frame_field = values ? 5 : 4;
    Entry found;
    int64_t same = 0, frame = 0;
    Reader in(bytes);
    while (in.next()) {
      if (in.is(1, Wire::kBytes)) {
        const auto table = tables_.find(std::string(in.bytes()));
        require(table != tables_.end());
        found.table = &table->second;
      } else if (in.is(3, Wire::kVarint)) {
        same = in.number();
      } else if (in.is(frame_field, Wire::kVarint)) {
        frame = in.number();
      } else {
        require(values && in.is(4, Wire::kBytes) && values->empty());
        *values = in.bytes();
      }
    }
    require(in.good() && found.table && (same == 0) != (frame == 0));
    if (same) {
      require(same >= 1 && same <= static_cast<int64_t>(before.size()));
      const Entry& first = before[static_cast<size_t>(same) - 1];
      found.ids = first.ids, found.n = first.n, found.owner = first.owner;
      return found;
    }
    const Frame& ids = call.frame(frame);
    require(ids.size % 8 == 0 && reinterpret_cast<uintptr_t>(ids.data) % 8 == 0);
    // A copy: the answer or the sender may overwrite shared memory after the ids were checked.
    const py::array_t<int64_t> copy(ssize(ids.size / 8), reinterpret_cast<const int64_t*>(ids.data));
    found.ids = copy.data(), found.n = ids.size / 8, found.owner = copy;
    return found;
  }

  // True if the learning rates are those of all groups, or none, and finite in float32.
  bool are_sound(const std::vector<double>& rates) const {
    for (const double rate : rates) {
      if (!(std::abs(rate) <= std::numeric_limits<float>::max())) return false;  // also for NaN
    }
    return rates.empty() || rates.size() == groups_;
  }

  // True if all ids are within their tables and all gradients are finite. dense: the flat gradient,
  // or nullptr. Throws std::invalid_argument for ids outside of a table.
  bool is_sound(const std::vector<Entry>& entries, const float* dense) const {
    size_t floats = dense ? dense_size_ : 0;
    for (const Entry& each : entries) floats += each.n * each.table->second->dim();
    const Unlocked unlocked(floats);
    for (const auto& [start, stop] : dense ? trained_ : Ranges()) {
      if (edl::first_nonfinite(dense + start, stop - start) >= 0) return false;
    }
    for (const Entry& each : entries) {
      const Table& table = *each.table->second;
      table.check_ids(each.ids, each.n);
      if (edl::first_nonfinite(each.values, each.n * table.dim()) >= 0) return false;
    }
    return true;
  }

  // Table, ids and gradient of the newest entry.
  py::tuple gradient(const Call& call, std::vector<Entry>& entries, std::string_view values) const {
    Entry& own = entries.back();
    const Table& table = *own.table->second;
    for (size_t i = 0; i + 1 < entries.size(); ++i) require(entries[i].table != own.table);
    require(!values.empty() && !table.frozen());
    Floats gradients = Tensor(call, values).array({own.n, table.dim()});
    own.values = gradients.data();
    const py::array_t<int64_t> ids(ssize(own.n), own.ids, own.owner);
    return py::make_tuple(own.table->first, ids, std::move(gradients));
  }

  std::string job_;
  int64_t incarnation_;
  std::string key_;
  size_t piece_bytes_;
  size_t dense_size_ = 0;
  Ranges trained_;
  size_t groups_ = 0;
  std::map<std::string, std::pair<py::object, Table*>> tables_;
};

py::object answer_pull(const ShardCalls& calls, const Call& call, int64_t version,
                       const Floats& flat, const py::object& release) {
  try {
    return calls.answer_pull(call, version, flat, release);
  } catch (const Unusual&) {
    return py::none();
  } catch (const std::invalid_argument&) {
    return py::none();
  }
}

py::object decode_push(const ShardCalls& calls, const Call& call) {
  try {
    return calls.decode_push(call);
  } catch (const Unusual&) {
    return py::none();
  } catch (const std::invalid_argument&) {
    return py::none();
  }
}

std::unique_ptr<Call> open(const ShardCalls& calls, const py::sequence& pieces,
                           const Memory& memory, size_t most_bytes) {
  try {
    return std::make_unique<Call>(calls.open(pieces, memory, most_bytes));
  } catch (const Unusual&) {
    return nullptr;
  }
}

}  // namespace

void bind_calls(py::module_& m) {
  py::class_<Call>(m, "ShardCall")
      .def("frames", &Call::frames)
      .def_property_readonly("is_pull", [](const Call& call) { return call.kind == kPull; });
  py::class_<ShardCalls>(m, "ShardCalls")
      .def(py::init<std::string, int64_t, std::string, size_t>(), py::arg("job"),
           py::arg("incarnation"), py::arg("key"), py::arg("piece_bytes"))
      .def("add_table", &ShardCalls::add_table, py::arg("name"), py::arg("table"), py::arg("core"))
      .def("set_dense", &ShardCalls::set_dense, py::arg("size"), py::arg("trained"),
           py::arg("groups"))
      .def("open", &open, py::arg("pieces"), py::arg("memory"),
           py::arg("most_bytes"))
      .def("answer_pull", &answer_pull, py::arg("call"), py::arg("version"), py::arg("dense"),
           py::arg("release"))
      .def("decode_push", &decode_push, py::arg("call"));
}
