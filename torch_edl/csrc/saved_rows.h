// Copies of rows that a snapshot still needs, made before the rows changed.
//
// The copies are in blocks. A vector would copy all rows whenever it grows, and because ids are
// spread evenly, all sub-tables would grow within one push (200 ms, measured on 1 GB).
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

namespace edl {

class SavedRows {
 public:
  explicit SavedRows(size_t stride = 1) : stride_(stride) {}

  // Returns the memory of one more row.
  char* push() {
    if (size_ == blocks_.size() * kRows) blocks_.emplace_back(new char[kRows * stride_]);
    return at(size_++);
  }
  const char* back() const { return at(size_ - 1); }
  void pop() { --size_; }  // the memory is reused for the next row
  size_t size() const { return size_; }

 private:
  static constexpr size_t kRows = 512;  // rows of a block

  char* at(size_t index) const {
    return blocks_[index / kRows].get() + index % kRows * stride_;
  }

  size_t stride_;
  size_t size_ = 0;
  std::vector<std::unique_ptr<char[]>> blocks_;
};

}  // namespace edl
