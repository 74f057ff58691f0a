// A received call and its answer: messages whose tensors are frames, which were sent or are in memory
// that the caller shares. The fields are those of torch_edl/wire/{data_plane,tensor}.proto.
#pragma once

#include <deque>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays.h"
#include "messages.h"
#include "shared_memory.h"

namespace edl {

using Memory = std::shared_ptr<SharedMemory>;
using Bytes = py::array_t<uint8_t>;
using Floats = py::array_t<float>;

inline constexpr size_t kMostFrames = 4096;
inline constexpr size_t kAlignment = 64;       // of frames in shared memory
inline constexpr int64_t kFloat = 1;           // DataType.DT_FLOAT
inline constexpr uint32_t kPull = 3, kPush = 4;  // fields of DataRequest and DataAnswer

// A region of shared memory as an array, which releases the region at its end.
Bytes region(const Memory& memory, size_t at, size_t bytes);

// Raised for an unusual call.
struct Unusual {};

inline void require(bool usual) {
  if (!usual) throw Unusual{};
}

// Compares in constant time, so that the time of an answer does not tell the key.
inline bool same_secret(std::string_view one, std::string_view other) {
  if (one.size() != other.size()) return false;
  unsigned char difference = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    difference |= static_cast<unsigned char>(one[i] ^ other[i]);
  }
  return difference == 0;
}

// Reads SharedFrames: the places of frames in shared memory, and their sizes in bytes.
inline void read_places(std::string_view bytes, std::vector<int64_t>* places,
                        std::vector<int64_t>* sizes) {
  Reader in(bytes);
  while (in.next()) {
    require(in.is(1, Wire::kBytes) || in.is(2, Wire::kBytes));
    require(in.varints(in.is(1, Wire::kBytes) ? places : sizes, kMostFrames));
  }
  require(in.good() && places->size() == sizes->size());
}

// The description of a tensor whose content is a frame, by the number of the frame.
inline Writer describe_tensor(int64_t dtype, std::initializer_list<size_t> shape, int64_t frame) {
  Writer dims, out;
  for (const size_t size : shape) {
    Writer dim;
    dim.number(1, static_cast<int64_t>(size));
    dims.message(2, dim);
  }
  out.number(1, dtype);
  out.message(2, dims);
  out.number(1000, frame);
  return out;
}

struct Frame {
  const char* data = nullptr;
  size_t size = 0;
  py::object owner;  // keeps the data
};

// A received call, without the content of its request.
class Call {
 public:
  // most_bytes: limit of the bytes of all frames.
  Call(const py::sequence& pieces, const Memory& memory, std::string_view key, size_t piece_bytes,
       size_t most_bytes)
      : memory_(memory) {
    for (const py::handle piece : pieces) {
      views_.emplace_back(piece);
      require(views_.back().size() < piece_bytes);
    }
    require(!views_.empty() && views_.size() <= kMostFrames);
    std::vector<int64_t> places, sizes;
    bool known = false;
    Reader in(std::string_view(views_[0].data(), views_[0].size()));
    while (in.next()) {
      if (in.is(1, Wire::kBytes)) {
        known = same_secret(in.bytes(), key);
      } else if (in.is(2, Wire::kVarint)) {
        number = in.number();
      } else if (in.is(kPull, Wire::kBytes) || in.is(kPush, Wire::kBytes)) {
        require(!kind);
        kind = in.is(kPull, Wire::kBytes) ? kPull : kPush;
        body = in.bytes();
      } else if (in.is(11, Wire::kBytes)) {
        require(places.empty());
        read_places(in.bytes(), &places, &sizes);
        require(!places.empty());
      } else if (in.is(12, Wire::kVarint)) {
        room_at = in.number();
      } else if (in.is(13, Wire::kVarint)) {
        room_bytes = in.number();
      } else {
        throw Unusual{};
      }
    }
    require(in.good() && known && kind);
    require(find_frames(pieces, places, sizes) <= most_bytes);
    require(room_bytes == 0 || (memory && inside(room_at, room_bytes)));
  }

  const Frame& frame(int64_t number) const {
    require(number >= 1 && number <= static_cast<int64_t>(frames_.size()));
    return frames_[static_cast<size_t>(number) - 1];
  }
  // All frames, as views.
  py::list frames() const {
    py::list made;
    for (const Frame& each : frames_) {
      const auto* data = reinterpret_cast<const uint8_t*>(each.data);
      made.append(Bytes(ssize(each.size), data, each.owner).attr("data"));
    }
    return made;
  }
  char* room() const { return room_bytes ? memory_->data() + room_at : nullptr; }

  int64_t number = 0;
  uint32_t kind = 0;
  std::string_view body;
  int64_t room_at = 0;
  int64_t room_bytes = 0;
  bool lent = false;  // frames are in the memory of the caller

 private:
  bool inside(int64_t at, int64_t bytes) const {
    const auto size = static_cast<int64_t>(memory_->size());
    return at >= 0 && bytes >= 0 && at <= size && bytes <= size - at;
  }

  // A received frame. It is copied if its numbers are not aligned: several small frames share the
  // buffer into which ZeroMQ receives them.
  static Frame aligned(const View& view, py::object owner) {
    if (reinterpret_cast<uintptr_t>(view.data()) % sizeof(int64_t) == 0) {
      return {view.data(), view.size(), std::move(owner)};
    }
    const Bytes copy(ssize(view.size()), reinterpret_cast<const uint8_t*>(view.data()));
    return {reinterpret_cast<const char*>(copy.data()), view.size(), copy};
  }

  // Returns the bytes of all frames.
  size_t find_frames(const py::sequence& pieces, const std::vector<int64_t>& places,
                     const std::vector<int64_t>& sizes) {
    size_t sent = 1, total = 0;
    const size_t count = places.empty() ? views_.size() - 1 : places.size();
    const py::object memory = memory_ ? py::cast(memory_) : py::none();
    for (size_t i = 0; i < count; ++i) {
      if (places.empty() || places[i] < 0) {
        require(sent < views_.size());
        frames_.push_back(aligned(views_[sent], pieces[sent]));
        ++sent;
      } else {
        require(memory_ && inside(places[i], sizes[i]));
        frames_.push_back(
            {memory_->data() + places[i], static_cast<size_t>(sizes[i]), memory});
        lent = true;
      }
      total += frames_.back().size;
    }
    require(sent == views_.size());
    return total;
  }

  Memory memory_;
  std::deque<View> views_;
  std::vector<Frame> frames_;
};

// The frames of an answer: in the room of the call, or in memory of their own.
class Answer {
 public:
  explicit Answer(const Call& call) : call_(call) {}

  // Adds a frame, and returns where to write its content.
  char* add(size_t bytes) {
    const size_t at = (used_ + kAlignment - 1) / kAlignment * kAlignment;
    sizes_.packed(static_cast<int64_t>(bytes));
    ++count_;
    if (bytes && at + bytes <= static_cast<size_t>(call_.room_bytes)) {
      used_ = at + bytes;
      placed_ = true;
      places_.packed(call_.room_at + static_cast<int64_t>(at));
      return call_.room() + at;
    }
    places_.packed(-1);
    sent_.emplace_back(ssize(bytes));
    return reinterpret_cast<char*>(sent_.back().mutable_data());
  }

  // The description of a tensor whose content is the newest frame.
  Writer tensor(int64_t dtype, std::initializer_list<size_t> shape) const {
    return describe_tensor(dtype, shape, static_cast<int64_t>(count_));
  }

  // The answer as it is sent, with the message of the kind of the call.
  py::list finish(const Writer& message) const {
    Writer out;
    out.number(1, call_.number);
    out.message(call_.kind + 1, message);
    if (placed_) {
      Writer shared;
      shared.bytes(1, places_.out());
      shared.bytes(2, sizes_.out());
      out.message(12, shared);
    }
    py::list content;
    content.append(py::bytes(out.out()));
    for (const Bytes& each : sent_) content.append(each);
    return content;
  }

 private:
  const Call& call_;
  size_t used_ = 0, count_ = 0;
  bool placed_ = false;
  Writer places_, sizes_;
  std::vector<Bytes> sent_;
};

// The shape (one or two sizes) and the frame of a float32 tensor.
struct Tensor {
  std::vector<int64_t> shape;
  const Frame* frame = nullptr;

  Tensor(const Call& call, std::string_view bytes) {
    int64_t dtype = 0;
    Reader in(bytes);
    while (in.next()) {
      if (in.is(1, Wire::kVarint)) {
        dtype = in.number();
      } else if (in.is(2, Wire::kBytes)) {
        Reader dims(in.bytes());
        while (dims.next()) {
          require(dims.is(2, Wire::kBytes) && shape.size() < 2);
          Reader dim(dims.bytes());
          int64_t size = 0;
          while (dim.next()) {
            require(dim.is(1, Wire::kVarint));
            size = dim.number();
          }
          require(dim.good());
          shape.push_back(size);
        }
        require(dims.good());
      } else {
        require(in.is(1000, Wire::kVarint));
        frame = &call.frame(in.number());
      }
    }
    require(in.good() && dtype == kFloat && frame);
  }

  // The content as an array of this shape.
  Floats array(std::vector<size_t> wanted) const {
    size_t size = 1;
    require(shape.size() == wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      require(shape[i] == static_cast<int64_t>(wanted[i]));
      size *= wanted[i];
    }
    require(frame->size == 4 * size && reinterpret_cast<uintptr_t>(frame->data) % 4 == 0);
    return Floats(wanted, reinterpret_cast<const float*>(frame->data), frame->owner);
  }
};

}  // namespace edl
