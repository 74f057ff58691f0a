// Python bindings for the client of parameter servers: encodes the usual pulls and pushes, and copies
// the rows of the answers to a pull. The fields are those of torch_edl/wire/{data_plane,pserver,
// tensor}.proto; see received_call.h for the server's side.
#include "bindings.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arrays.h"
#include "received_call.h"

namespace py = pybind11;
using edl::Bytes;
using edl::checked;
using edl::Floats;
using edl::Frame;
using edl::kFloat;
using edl::kPull;
using edl::kPush;
using edl::Memory;
using edl::Reader;
using edl::require;
using edl::ssize;
using edl::Unusual;
using edl::View;
using edl::Wire;
using edl::Writer;

namespace {

constexpr size_t kLeastShared = 2048;  // smaller frames are sent

// A table's name, its unique ids ordered by server, and the start of each server's part.
struct Lookup {
  std::string name;
  py::array ids;
  size_t start, stop;

  Lookup(const py::tuple& given, size_t server)
      : name(given[0].cast<std::string>()), ids(given[1].cast<py::array>()) {
    const auto offsets = given[2].cast<py::array>();
    const auto* at = checked<int64_t>(offsets, "offsets", {-1});
    const size_t n = edl::count_ids(ids);
    if (server + 1 >= edl::length(offsets) || at[server] < 0 || at[server] > at[server + 1] ||
        at[server + 1] > static_cast<int64_t>(n)) {
      throw py::value_error("offsets: no part of the ids for server " + std::to_string(server));
    }
    start = static_cast<size_t>(at[server]);
    stop = static_cast<size_t>(at[server + 1]);
  }
  size_t size() const { return stop - start; }
  const char* data() const {
    return reinterpret_cast<const char*>(static_cast<const int64_t*>(ids.data()) + start);
  }
};

// A call to be sent: its message, and its frames, which are sent or put into shared memory.
class SentCall {
 public:
  SentCall(std::string_view key, int64_t number, Memory memory) : memory_(std::move(memory)) {
    head_.bytes(1, key);
    head_.number(2, number);
  }

  // Adds a frame with the bytes at an address, which belong to `owner`; returns its number.
  int64_t add(const char* data, size_t bytes, const py::object& owner) {
    ptrdiff_t at = -1;
    if (memory_ && bytes >= kLeastShared) {
      at = memory_->position(data, bytes);
      py::object kept = owner;
      if (at < 0 && (at = memory_->allocate(bytes)) >= 0) {
        kept = edl::region(memory_, static_cast<size_t>(at), bytes);
        std::memcpy(memory_->data() + at, data, bytes);
      }
      if (at >= 0) kept_.append(kept);
    }
    if (at < 0) {
      sent_.append(bytes < kLeastShared
                       ? py::object(py::bytes(data, bytes))
                       : Bytes(ssize(bytes), reinterpret_cast<const uint8_t*>(data), owner));
    }
    places_.packed(at);
    sizes_.packed(static_cast<int64_t>(bytes));
    return ++count_;
  }

  // A float32 tensor whose content is a new frame.
  Writer tensor(const float* data, std::initializer_list<size_t> shape, const py::object& owner) {
    size_t size = 1;
    for (const size_t each : shape) size *= each;
    const auto* bytes = reinterpret_cast<const char*>(data);
    return edl::describe_tensor(kFloat, shape, add(bytes, 4 * size, owner));
  }

  // Writes name and ids of a table into its entry. Tables with the same ids share a frame.
  void put_ids(Writer* entry, const Lookup& lookup, uint32_t frame_field) {
    entry->bytes(1, lookup.name);
    ids_.push_back(lookup.ids.ptr());
    const auto first = std::find(ids_.begin(), ids_.end(), ids_.back());
    if (first + 1 != ids_.end()) {
      entry->number(3, first - ids_.begin() + 1);
      return;
    }
    entry->number(frame_field, add(lookup.data(), 8 * lookup.size(), lookup.ids));
  }

  // The frames to send, the frames in shared memory, and room in shared memory for the answer.
  py::tuple finish(uint32_t kind, const Writer& message, size_t answer_bytes) {
    head_.message(kind, message);
    if (!kept_.empty()) {
      Writer shared;
      shared.bytes(1, places_.out());
      shared.bytes(2, sizes_.out());
      head_.message(11, shared);
    }
    py::object room = py::none();
    const ptrdiff_t at = memory_ && answer_bytes ? memory_->allocate(answer_bytes) : -1;
    if (at >= 0) {
      room = edl::region(memory_, static_cast<size_t>(at), answer_bytes);
      head_.number(12, at);
      head_.number(13, static_cast<int64_t>(answer_bytes));
    }
    py::list content;
    content.append(py::bytes(head_.out()));
    for (const py::handle each : sent_) content.append(each);
    return py::make_tuple(content, kept_, room);
  }

 private:
  Memory memory_;
  Writer head_, places_, sizes_;
  py::list sent_, kept_;
  int64_t count_ = 0;
  std::vector<const PyObject*> ids_;  // arrays of each entry
};

Writer fence(const std::string& job, int64_t incarnation) {
  Writer out;
  out.bytes(1, job);
  out.number(2, incarnation);
  return out;
}

py::tuple encode_pull(const py::bytes& key, int64_t number, const Memory& memory,
                      const std::string& job, int64_t incarnation, bool dense,
                      int64_t dense_version, bool read_only, const py::list& lookups,
                      size_t server, size_t answer_bytes) {
  SentCall call(key, number, memory);
  Writer message;
  message.message(1, fence(job, incarnation));
  message.number(2, dense);
  message.number(3, dense_version);
  for (const py::handle each : lookups) {
    Writer entry;
    call.put_ids(&entry, Lookup(each.cast<py::tuple>(), server), 4);
    message.message(4, entry);
  }
  message.number(5, read_only);
  message.number(6, kFloat);
  return call.finish(kPull, message, answer_bytes);
}

py::tuple encode_push(const py::bytes& key, int64_t number, const Memory& memory,
                      const std::string& job, int64_t incarnation,
                      const std::vector<int64_t>& range, int64_t version, int64_t retired_before,
                      const std::vector<double>& rates, const py::object& dense,
                      const std::vector<int64_t>& untouched, const py::list& lookups,
                      const py::list& gradients, size_t server) {
  if (range.size() != 3) throw py::value_error("range: expected task, first and last record");
  if (lookups.size() != gradients.size()) {
    throw py::value_error(std::to_string(lookups.size()) + " tables and " +
                          std::to_string(gradients.size()) + " gradients");
  }
  SentCall call(key, number, memory);
  Writer message, records;
  message.message(1, fence(job, incarnation));
  for (uint32_t field = 1; field <= 3; ++field) records.number(field, range[field - 1]);
  message.message(2, records);
  message.number(3, version);
  if (!dense.is_none()) {
    const auto flat = dense.cast<py::array>();
    const auto* from = checked<float>(flat, "dense", {-1});
    message.message(4, call.tensor(from, {edl::length(flat)}, flat));
  }
  for (size_t i = 0; i < lookups.size(); ++i) {
    const Lookup lookup(lookups[i].cast<py::tuple>(), server);
    const auto gradient = gradients[i].cast<py::array>();
    const auto* from =
        checked<float>(gradient, "gradients", {ssize(edl::length(lookup.ids)), -1});
    const auto dim = static_cast<size_t>(gradient.shape(1));
    Writer entry;
    call.put_ids(&entry, lookup, 5);
    entry.message(4, call.tensor(from + lookup.start * dim, {lookup.size(), dim}, gradient));
    message.message(5, entry);
  }
  Writer packed;
  for (const double rate : rates) packed.eight(rate);
  if (!rates.empty()) message.bytes(6, packed.out());
  message.number(7, retired_before);
  Writer places;
  for (const int64_t place : untouched) places.packed(place);
  if (!untouched.empty()) message.bytes(8, places.out());
  return call.finish(kPush, message, 0);
}

// The frames of an answer to a pull, by number.
class Frames {
 public:
  // shared: SharedFrames of the answer. room: memory for the answer, at a position in the memory.
  Frames(std::string_view shared, const py::sequence& sent, const py::object& room, int64_t room_at) {
    std::vector<int64_t> places, sizes;
    edl::read_places(shared, &places, &sizes);
    if (places.empty()) places.resize(sent.size(), -1), sizes.resize(sent.size());
    if (!room.is_none()) room_.emplace(room);
    size_t next = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] < 0) {
        require(next < sent.size());
        const View& view = sent_.emplace_back(sent[next]);
        frames_.push_back({view.data(), view.size(), sent[next++]});
        continue;
      }
      require(room_.has_value() && sizes[i] >= 0);
      const int64_t begin = places[i] - room_at, room_bytes = ssize(room_->size());
      require(begin >= 0 && begin <= room_bytes && sizes[i] <= room_bytes - begin);
      frames_.push_back({room_->data() + begin, static_cast<size_t>(sizes[i]), room});
    }
    require(next == sent.size());
  }

  // The content of a float32 tensor with `size` elements; -1 stands for any number.
  const Frame& of_tensor(std::string_view bytes, ptrdiff_t size) const {
    int64_t dtype = 0, number = 0;
    Reader in(bytes);
    while (in.next()) {
      if (in.is(1, Wire::kVarint)) dtype = in.number();
      if (in.is(1000, Wire::kVarint)) number = in.number();
    }
    require(in.good() && dtype == kFloat && number >= 1 && number <= ssize(frames_.size()));
    const Frame& found = frames_[static_cast<size_t>(number) - 1];
    require(found.size % 4 == 0 && (size < 0 || found.size == 4 * static_cast<size_t>(size)));
    return found;
  }

 private:
  std::deque<View> sent_;
  std::optional<View> room_;
  std::vector<Frame> frames_;
};

// Copies the rows of one server; returns its version and its dense parameters, or None.
py::tuple read_answer(const py::tuple& given, const py::list& lookups, const py::list& rows,
                      size_t server) {
  const View head(given[0]);
  std::string_view body, shared;
  Reader in(std::string_view(head.data(), head.size()));
  while (in.next()) {
    if (in.is(kPull + 1, Wire::kBytes)) {
      body = in.bytes();
    } else if (in.is(12, Wire::kBytes)) {
      shared = in.bytes();
    } else {
      require(in.is(1, Wire::kVarint));
    }
  }
  require(in.good());
  const Frames frames(shared, given[1].cast<py::sequence>(), given[2].cast<py::object>(),
                      given[3].cast<int64_t>());
  int64_t version = 0;
  size_t table = 0;
  py::object dense = py::none();
  for (in = Reader(body); in.next();) {
    if (in.is(2, Wire::kVarint)) {
      version = in.number();
    } else if (in.is(3, Wire::kBytes)) {
      const Frame& flat = frames.of_tensor(in.bytes(), -1);
      require(reinterpret_cast<uintptr_t>(flat.data) % 4 == 0);
      dense = Floats(ssize(flat.size / 4), reinterpret_cast<const float*>(flat.data), flat.owner);
    } else if (in.is(4, Wire::kBytes)) {
      require(table < lookups.size());
      const Lookup lookup(lookups[table].cast<py::tuple>(), server);
      const auto out = rows[table].cast<py::array>();
      auto* to = checked<float>(out, "rows", {ssize(edl::length(lookup.ids)), -1}, true);
      const auto dim = static_cast<size_t>(out.shape(1));
      const Frame& from = frames.of_tensor(in.bytes(), ssize(lookup.size() * dim));
      std::memcpy(to + lookup.start * dim, from.data, from.size);
      ++table;
    } else {
      require(in.is(1, Wire::kVarint) && in.number() == 1);  // initialized
    }
  }
  require(in.good() && table == lookups.size());
  return py::make_tuple(version, dense);
}

py::object read_pull(const py::list& answers, const py::list& lookups, const py::list& rows) {
  py::list versions, dense;
  try {
    for (size_t server = 0; server < answers.size(); ++server) {
      const auto found = read_answer(answers[server].cast<py::tuple>(), lookups, rows, server);
      versions.append(found[0]);
      dense.append(found[1]);
    }
  } catch (const Unusual&) {
    return py::none();
  }
  return py::make_tuple(versions, dense);
}

}  // namespace

void bind_client(py::module_& m) {
  m.def("encode_pull", &encode_pull, py::arg("key"), py::arg("number"), py::arg("memory"),
        py::arg("job"), py::arg("incarnation"), py::arg("dense"), py::arg("dense_version"),
        py::arg("read_only"), py::arg("lookups"), py::arg("server"), py::arg("answer_bytes"));
  m.def("encode_push", &encode_push, py::arg("key"), py::arg("number"), py::arg("memory"),
        py::arg("job"), py::arg("incarnation"), py::arg("range"), py::arg("version"),
        py::arg("retired_before"), py::arg("rates"), py::arg("dense"), py::arg("untouched"),
        py::arg("lookups"), py::arg("gradients"), py::arg("server"));
  m.def("read_pull", &read_pull, py::arg("answers"), py::arg("lookups"), py::arg("rows"));
}
