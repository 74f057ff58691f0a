// Memory of tables, directly from the kernel, with huge pages for large regions. With pages of 4
// KB, a random access to a table of gigabytes misses the TLB for nearly every row.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace edl {

constexpr size_t kHugePage = size_t{2} << 20;

// A zeroed region. A region of at least one huge page consists of, and is aligned to, huge pages.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t size, bool huge = true) {
    huge = huge && size >= kHugePage;
    mapped_ = huge ? (size + 2 * kHugePage - 1) / kHugePage * kHugePage : size;
    map_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map_ == MAP_FAILED) {
      map_ = nullptr;
      throw std::bad_alloc();
    }
    auto start = reinterpret_cast<uintptr_t>(map_);
    if (huge) {
      start = (start + kHugePage - 1) / kHugePage * kHugePage;
#ifdef MADV_HUGEPAGE
      madvise(reinterpret_cast<void*>(start), size / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
    }
    data_ = reinterpret_cast<char*>(start);
  }
  ~Pages() {
    if (map_) munmap(map_, mapped_);
  }
  Pages(Pages&& other) noexcept { swap(other); }
  Pages& operator=(Pages&& other) noexcept {
    swap(other);
    return *this;
  }

  char* data() const { return data_; }

 private:
  void swap(Pages& other) {
    std::swap(map_, other.map_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
  }
  void* map_ = nullptr;
  size_t mapped_ = 0;
  char* data_ = nullptr;
};

// Slabs of one size, cut from larger regions. The first region has small pages and one slab for
// each sub-table, so that a small table only occupies the pages that it touches.
class SlabArena {
 public:
  SlabArena(size_t slab_bytes, size_t first_slabs)
      : slab_bytes_((slab_bytes + 63) / 64 * 64), slabs_(first_slabs) {}

  char* take() {
    std::lock_guard<std::mutex> guard(lock_);
    if (left_ == 0) {
      const bool first = regions_.empty();
      if (!first) {
        const size_t wanted = 16 * kHugePage;
        slabs_ = wanted / slab_bytes_ > 1 ? wanted / slab_bytes_ : 1;
      }
      regions_.emplace_back(slabs_ * slab_bytes_, !first);
      next_ = regions_.back().data();
      left_ = slabs_;
    }
    char* slab = next_;
    next_ += slab_bytes_;
    --left_;
    return slab;
  }

 private:
  const size_t slab_bytes_;
  size_t slabs_;
  size_t left_ = 0;
  char* next_ = nullptr;
  std::vector<Pages> regions_;
  std::mutex lock_;
};

}  // namespace edl
