// Rows that a snapshot still needs, copied before they changed.
//
// In blocks: a vector would copy all of them whenever it grows, and since ids spread evenly, all
// sub-tables would grow within one push (200 ms, measured on 1 GB).
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace edl {

class SavedRows {
 public:
  explicit SavedRows(size_t stride = 1) : stride_(stride) {}

  void push(const char* row) {
    if (size_ == blocks_.size() * kRows) blocks_.emplace_back(new char[kRows * stride_]);
    std::memcpy(at(size_), row, stride_);
    ++size_;
  }
  const char* back() const { return at(size_ - 1); }
  void pop() { --size_; }  // its memory is for the next row
  size_t size() const { return size_; }

 private:
  static constexpr size_t kRows = 512;  // of a block

  char* at(size_t index) const {
    return blocks_[index / kRows].get() + index % kRows * stride_;
  }

  size_t stride_;
  size_t size_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

}  // namespace edl
