// Memory that a process shares with others of its machine, by a file descriptor.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace edl {

// A memfd of a fixed size, mapped as a whole. The kernel provides a page when it is first used, so
// the size is only a limit. The size is sealed: no process can shrink the file, which would kill
// the others with SIGBUS.
class SharedMemory {
 public:
  // Creates memory. Throws std::system_error.
  explicit SharedMemory(size_t bytes);
  // Maps the memory of another process, /proc/PID/fd/FD. Throws std::system_error, or
  // std::invalid_argument if the file is not sealed, or not of this user.
  explicit SharedMemory(const std::string& path);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  int file() const { return file_; }
  size_t size() const { return size_; }
  char* data() const { return data_; }
  // Reserves a region aligned to a cache line, and returns its position; -1 if there is no room.
  // Regions are rounded up to a few sizes and reused, so steady traffic touches the same pages.
  ptrdiff_t allocate(size_t bytes);
  void release(size_t at, size_t bytes);
  // Position of an address range in the memory; -1 if it is not inside.
  ptrdiff_t position(const void* address, size_t bytes) const;

 private:
  void map();

  int file_ = -1;
  size_t size_ = 0;
  char* data_ = nullptr;
  std::mutex lock_;  // of the fields below
  size_t end_ = 0;   // all regions are before it
  std::map<size_t, std::vector<size_t>> free_;  // released regions by size
};

}  // namespace edl
