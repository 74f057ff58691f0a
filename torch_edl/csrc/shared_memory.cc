#include "shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <stdexcept>
#include <system_error>

namespace edl {

namespace {

constexpr size_t kLeast = 4096;

[[noreturn]] void fail(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

// Sizes of regions: four for each power of two.
size_t rounded(size_t bytes) {
  size_t power = kLeast;
  while (2 * power < bytes) power *= 2;
  const size_t step = power / 4;
  return bytes <= kLeast ? kLeast : (bytes + step - 1) / step * step;
}

}  // namespace

SharedMemory::SharedMemory(size_t bytes) : size_(bytes) {
  file_ = memfd_create("torch-edl", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (file_ < 0) fail("memfd_create");
  if (ftruncate(file_, static_cast<off_t>(bytes)) != 0 ||
      fcntl(file_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    close(file_);
    errno = error;
    fail("memory of " + std::to_string(bytes) + " bytes");
  }
  map();
}

SharedMemory::SharedMemory(const std::string& path) {
  file_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file_ < 0) fail(path);
  struct stat found;
  const int seals = fcntl(file_, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(file_, &found) != 0 ||
      found.st_uid != geteuid() || found.st_size <= 0) {
    close(file_);
    throw std::invalid_argument(path + ": not sealed memory of this user");
  }
  size_ = static_cast<size_t>(found.st_size);
  map();
}

void SharedMemory::map() {
  void* found = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file_, 0);
  if (found == MAP_FAILED) {
    const int error = errno;
    close(file_);
    errno = error;
    fail("memory of " + std::to_string(size_) + " bytes");
  }
  data_ = static_cast<char*>(found);
}

SharedMemory::~SharedMemory() {
  munmap(data_, size_);
  close(file_);
}

ptrdiff_t SharedMemory::allocate(size_t bytes) {
  if (bytes > size_) return -1;
  const size_t size = rounded(bytes);
  const std::lock_guard<std::mutex> guard(lock_);
  auto& same = free_[size];
  if (!same.empty()) {
    const size_t at = same.back();
    same.pop_back();
    return static_cast<ptrdiff_t>(at);
  }
  if (size > size_ - end_) return -1;
  const size_t at = end_;
  end_ += size;
  return static_cast<ptrdiff_t>(at);
}

void SharedMemory::release(size_t at, size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  free_[rounded(bytes)].push_back(at);
}

ptrdiff_t SharedMemory::position(const void* address, size_t bytes) const {
  const auto at = reinterpret_cast<uintptr_t>(address), begin = reinterpret_cast<uintptr_t>(data_);
  if (at < begin || at > begin + size_ || bytes > begin + size_ - at) return -1;
  return static_cast<ptrdiff_t>(at - begin);
}

}  // namespace edl
