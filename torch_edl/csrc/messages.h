// Reads and writes protobuf messages whose fields are known. See the encoding at
// https://protobuf.dev/programming-guides/encoding.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace edl {

enum class Wire : uint32_t { kVarint = 0, kEight = 1, kBytes = 2, kFour = 5 };

// Iterates over the fields of an encoded message:
//
//   for (Reader in(bytes); in.next();) if (in.is(2, Wire::kVarint)) n = in.number();
//   if (!in.good()) ...  // the bytes are no message
class Reader {
 public:
  explicit Reader(std::string_view bytes)
      : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // Moves to the next field; false at the end and after an error.
  bool next() {
    if (at_ == end_ || !good_) return false;
    const uint64_t key = varint();
    field_ = static_cast<uint32_t>(key >> 3);
    wire_ = static_cast<Wire>(key & 7);
    if (wire_ == Wire::kVarint) {
      number_ = varint();
    } else if (wire_ == Wire::kBytes) {
      take(varint());
    } else if (wire_ == Wire::kEight || wire_ == Wire::kFour) {
      take(wire_ == Wire::kEight ? 8 : 4);
    } else {
      good_ = false;
    }
    good_ = good_ && key >> 3 != 0 && key >> 32 == 0;
    return good_;
  }
  bool good() const { return good_; }
  bool is(uint32_t field, Wire wire) const { return field_ == field && wire_ == wire; }
  int64_t number() const { return static_cast<int64_t>(number_); }
  std::string_view bytes() const { return bytes_; }

  // The numbers of a packed field. False for an error, or if `to` (a container) would get more than
  // `most` numbers.
  template <typename Numbers>
  bool varints(Numbers* to, size_t most) const {
    Reader in(bytes_);
    while (in.at_ != in.end_ && in.good_ && to->size() < most) {
      to->push_back(static_cast<int64_t>(in.varint()));
    }
    return in.good_ && in.at_ == in.end_;
  }
  template <typename Numbers>
  bool doubles(Numbers* to, size_t most) const {
    if (bytes_.size() % 8 != 0 || bytes_.size() / 8 > most - to->size()) return false;
    for (size_t at = 0; at < bytes_.size(); at += 8) {
      double value;
      std::memcpy(&value, bytes_.data() + at, 8);
      to->push_back(value);
    }
    return true;
  }

 private:
  uint64_t varint() {
    uint64_t value = 0;
    for (uint32_t shift = 0; shift < 64; shift += 7) {
      if (at_ == end_) break;
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    good_ = false;
    return 0;
  }
  void take(uint64_t size) {
    if (!good_ || size > static_cast<uint64_t>(end_ - at_)) {
      good_ = false;
      return;
    }
    bytes_ = {at_, static_cast<size_t>(size)};
    at_ += size;
  }

  const char* at_;
  const char* end_;
  bool good_ = true;
  uint32_t field_ = 0;
  Wire wire_ = Wire::kVarint;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

// Appends fields to an encoded message.
class Writer {
 public:
  void number(uint32_t field, int64_t value) {
    key(field, Wire::kVarint);
    varint(static_cast<uint64_t>(value));
  }
  void bytes(uint32_t field, std::string_view value) {
    key(field, Wire::kBytes);
    varint(value.size());
    out_ += value;
  }
  void message(uint32_t field, const Writer& value) { bytes(field, value.out_); }
  // A number without a key, for a packed field.
  void packed(int64_t value) { varint(static_cast<uint64_t>(value)); }
  // A double without a key, for a packed field.
  void eight(double value) { out_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  const std::string& out() const { return out_; }

 private:
  void key(uint32_t field, Wire wire) { varint(field << 3 | static_cast<uint32_t>(wire)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_ += static_cast<char>(value | 0x80);
    out_ += static_cast<char>(value);
  }

  std::string out_;
};

}  // namespace edl
