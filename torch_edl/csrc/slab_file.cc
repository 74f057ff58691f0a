#include "slab_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <system_error>

#include "row_layout.h"

namespace edl {
namespace {

size_t page_size() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

constexpr size_t kMostBytes = size_t{1} << 40;  // of address space for one table
constexpr size_t kAhead = size_t{256} << 10;    // bytes that warm_range() reads ahead
constexpr uint32_t kResident = 1000;  // milliseconds in which a page that was used stays in memory
constexpr uint32_t kRetry = 100;      // milliseconds before a full disk is tried again
constexpr long kTmpfs = 0x01021994, kRamfs = 0x858458f6;

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

uint32_t now_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint32_t>(now / std::chrono::milliseconds(1));
}

void touch(const char* at) { (void)__atomic_load_n(at, __ATOMIC_RELAXED); }

// Bytes of address space for the file: it cannot be larger than its file system.
size_t limit_of(const std::string& folder) {
  struct statvfs about;
  struct statfs kind;
  if (statvfs(folder.c_str(), &about) != 0 || statfs(folder.c_str(), &kind) != 0) {
    fail(errno, "disk:" + folder);
  }
  if (kind.f_type == kTmpfs || static_cast<uint32_t>(kind.f_type) == kRamfs) {
    throw std::invalid_argument("disk:" + folder +
                                ": a file system in memory (tmpfs); name a folder on a local disk");
  }
  const size_t size = static_cast<size_t>(about.f_blocks) * about.f_frsize;
  return std::min(std::max(round_up(size, page_size()), page_size()), kMostBytes);
}

}  // namespace

ReservedArray::ReservedArray(size_t most_bytes) : most_(round_up(most_bytes, page_size())) {
  void* at = mmap(nullptr, most_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<char*>(at);
}

ReservedArray::~ReservedArray() { munmap(data_, most_); }

void ReservedArray::extend(size_t bytes) {
  const size_t wanted = round_up(bytes, page_size());
  if (wanted <= usable_) return;
  if (wanted > most_ || mprotect(data_ + usable_, wanted - usable_, PROT_READ | PROT_WRITE) != 0) {
    throw std::bad_alloc();
  }
  usable_ = wanted;
}

SlabFile::SlabFile(const std::string& folder, size_t row_bytes, size_t slab_rows, size_t meta_bytes)
    : folder_(folder),
      row_bytes_(row_bytes),
      meta_bytes_(meta_bytes),
      slab_rows_(slab_rows),
      slab_bytes_(slab_rows * row_bytes),
      mapped_(limit_of(folder) / slab_bytes_ * slab_bytes_),
      metas_(mapped_ / row_bytes * meta_bytes),
      seen_(mapped_ / page_size() * sizeof(uint32_t)) {
  std::string path = folder + "/.torch-edl-table-XXXXXX";
  file_ = mkostemp(path.data(), O_CLOEXEC);
  if (file_ < 0) fail(errno, "disk:" + folder);
  unlink(path.c_str());
  // The mapping reaches beyond the end of the file, which grows by slabs.
  void* at = mapped_ == 0 ? MAP_FAILED
                          : mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (at == MAP_FAILED) {
    const int error = mapped_ == 0 ? ENOSPC : errno;
    close(file_);
    fail(error, "disk:" + folder);
  }
  data_ = static_cast<char*>(at);
  madvise(data_, mapped_, MADV_RANDOM);
}

SlabFile::~SlabFile() {
  munmap(data_, mapped_);
  close(file_);
}

char* SlabFile::take() {
  const size_t start = slabs_ * slab_bytes_;
  // Pulls try for each new id.
  if (error_ != 0 && now_ms() - failed_at_ < kRetry) return nullptr;
  const auto from = static_cast<off_t>(start), size = static_cast<off_t>(slab_bytes_);
  error_ = start + slab_bytes_ > mapped_ ? ENOSPC : posix_fallocate(file_, from, size);
  if (error_ != 0) {
    failed_at_ = now_ms();
    // Blocks that were allocated before the disk was full are for others. If this fails too, they
    // are freed with the file.
    if (ftruncate(file_, from) != 0) errno = 0;
    return nullptr;
  }
  seen_.extend((start + slab_bytes_) / page_size() * sizeof(uint32_t));
  metas_.extend((slabs_ + 1) * slab_rows_ * meta_bytes_);
  ++slabs_;
  return data_ + start;
}

void SlabFile::throw_full(const std::string& table) const {
  fail(error_, "table " + table + ": disk:" + folder_ + " has no room for more rows");
}

void SlabFile::warm(const std::vector<char*>& rows) {
  const uint32_t now = now_ms();
  auto* seen = reinterpret_cast<uint32_t*>(seen_.data());
  const auto each_page = [&](auto use) {
    for (const char* row : rows) {
      const auto start = static_cast<size_t>(row - data_);
      for (size_t page = start / page_size(); page <= (start + row_bytes_ - 1) / page_size(); ++page) use(page);
    }
  };
  each_page([&](size_t page) {
    const uint32_t before = __atomic_load_n(seen + page, __ATOMIC_RELAXED);
    if (before != 0 && now - before < kResident) return;
    __atomic_store_n(seen + page, now | 1, __ATOMIC_RELAXED);
    madvise(data_ + page * page_size(), page_size(), MADV_WILLNEED);
  });
  each_page([&](size_t page) { touch(data_ + page * page_size()); });
}

void SlabFile::warm_range(const char* from, size_t rows) const {
  const char* start = data_ + static_cast<size_t>(from - data_) / page_size() * page_size();
  const char* end = from + rows * row_bytes_;
  const char* most = data_ + bytes();
  const auto ahead = std::min<size_t>(end - start + kAhead, most - start);
  madvise(const_cast<char*>(start), ahead, MADV_WILLNEED);
  for (const char* at = start; at < end; at += page_size()) touch(at);
}

}  // namespace edl
