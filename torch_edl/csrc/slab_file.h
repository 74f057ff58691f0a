// Rows of a table in a file on a disk, mapped into memory. The kernel keeps the pages that are used
// in its page cache, and writes changed pages to the disk.
//
// The file is scratch: journals, replicas and checkpoints keep the model. Its name is removed before
// it has rows, so a killed process leaves nothing behind. Blocks are allocated before rows use them:
// with a sparse file, a full disk would kill the process (SIGBUS).
//
// The metadata of rows stay in memory, in an array by the number of the row. Evictions therefore
// read nothing from the disk, and pulls and snapshots change no page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace edl {

// An array in reserved address space, which takes memory only for elements that are used.
class ReservedArray {
 public:
  explicit ReservedArray(size_t most_bytes);
  ~ReservedArray();
  ReservedArray(const ReservedArray&) = delete;
  ReservedArray& operator=(const ReservedArray&) = delete;

  // Makes the first bytes usable. Throws std::bad_alloc if memory is short.
  void extend(size_t bytes);
  char* data() const { return data_; }

 private:
  const size_t most_;
  size_t usable_ = 0;
  char* data_;
};

class SlabFile {
 public:
  // Throws std::system_error if the folder cannot hold a file, and std::invalid_argument if it is
  // in memory (tmpfs).
  SlabFile(const std::string& folder, size_t row_bytes, size_t slab_rows, size_t meta_bytes);
  ~SlabFile();
  SlabFile(const SlabFile&) = delete;
  SlabFile& operator=(const SlabFile&) = delete;

  // Returns a new slab of zeros; nullptr if the disk is full. The caller excludes all users of rows.
  char* take();
  // Throws the error of the last take() that returned nullptr.
  [[noreturn]] void throw_full(const std::string& table) const;
  char* meta(const char* row) const {
    return metas_.data() + static_cast<size_t>(row - data_) / row_bytes_ * meta_bytes_;
  }
  // Reads the pages of these rows into memory, all at the same time.
  void warm(const std::vector<char*>& rows);
  // Reads a range of rows into memory, and starts to read what follows.
  void warm_range(const char* from, size_t rows) const;
  size_t bytes() const { return slabs_ * slab_bytes_; }

 private:
  const std::string folder_;
  const size_t row_bytes_;
  const size_t meta_bytes_;
  const size_t slab_rows_;
  const size_t slab_bytes_;
  size_t mapped_ = 0;
  size_t slabs_ = 0;
  int error_ = 0;  // of the last take(); 0: none
  uint32_t failed_at_ = 0;
  int file_ = -1;
  char* data_ = nullptr;
  ReservedArray metas_;
  ReservedArray seen_;  // time in milliseconds of the last warm() of each page; 0: none
};

}  // namespace edl
