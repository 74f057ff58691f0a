// How often ids without a row were seen, with the memory that admission needs for each id.
//
// An id has 16 bytes, in slabs that never move, and 6 to 12 bytes of index. The index uses linear
// probing over entry numbers. The upper bits of a bucket contain a part of the hash, so that few
// probes read an entry. Free entries are in a list and are reused.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "pages.h"
#include "saved_rows.h"

namespace edl {

struct Counter {
  static constexpr int kCountBits = 24;
  static constexpr uint64_t kMostCount = (uint64_t{1} << kCountBits) - 1;
  static constexpr uint64_t kMostStep = (uint64_t{1} << (64 - kCountBits)) - 1;

  int64_t id;                                // of a free entry: number of the next free entry
  uint64_t count : kCountBits;               // 0: free
  uint64_t last_used : 64 - kCountBits;      // last update with the id
};
static_assert(sizeof(Counter) == 16);

// The counters of a sub-table. The caller must hold the lock of the sub-table.
class Counters {
 public:
  static constexpr size_t kSlabEntries = 4096;
  static constexpr size_t kFirstCapacity = 64;
  static constexpr size_t kIndexBytes = sizeof(uint32_t);  // size of a bucket
  static constexpr size_t kSlabBytes = kSlabEntries * sizeof(Counter);

  Counters() = default;
  // total: number of counters in all sub-tables.
  Counters(SlabArena* arena, std::atomic<size_t>* total) : arena_(arena), total_(total) {}

  // Increments the count of an id and returns it. Removes the counter if the count is `enough`.
  uint32_t add(int64_t id, uint64_t hash, uint32_t enough, int64_t step);
  void set(int64_t id, uint64_t hash, int64_t count, int64_t last_used);
  // Removes the counter of an id, if there is one.
  void forget(int64_t id, uint64_t hash);
  void prefetch(uint64_t hash) const {
    if (index_) __builtin_prefetch(index_ + (hash & mask_));
  }
  size_t size() const { return size_; }
  size_t bytes() const;

  // Entries by number, for eviction; an entry with count 0 is free.
  size_t used() const { return used_; }
  const Counter& at(size_t number) const {
    return slabs_[number / kSlabEntries][number % kSlabEntries];
  }

  // A snapshot, as that of rows: an entry is copied by next(), or just before it changes.
  void begin_snapshot();
  size_t snapshot_left() const { return limit_ - cursor_ + saved_.size(); }
  // Copies up to `most` counters; visits at most that many entries.
  size_t next(size_t most, Counter* to);
  // Ends the snapshot; returns saved copies, to be freed after the lock was released.
  SavedRows end_snapshot();

 private:
  static constexpr size_t kMaxCapacity = size_t{1} << 28;
  static constexpr size_t kNone = ~size_t{0};

  Counter& entry(size_t number) { return slabs_[number / kSlabEntries][number % kSlabEntries]; }
  // A bucket holds the number of an entry, counted from 1, and bits of the hash above it.
  uint32_t tag(uint64_t hash) const {
    return static_cast<uint32_t>(hash >> 32) & ~static_cast<uint32_t>(mask_);
  }
  // The bucket of the id, or the empty bucket where the id would be inserted.
  size_t bucket_of(int64_t id, uint64_t hash) const;
  size_t number_in(size_t bucket) const { return (index_[bucket] & mask_) - 1; }
  size_t take(int64_t id, uint64_t hash);
  void remove(size_t bucket);
  void grow();
  void before_change(size_t number);

  SlabArena* arena_ = nullptr;
  std::atomic<size_t>* total_ = nullptr;
  Pages pages_;
  uint32_t* index_ = nullptr;
  size_t mask_ = 0;
  size_t size_ = 0;
  std::vector<Counter*> slabs_;
  size_t used_ = 0;  // entries taken from the slabs so far
  size_t free_ = kNone;
  // Snapshot: entries in [cursor, limit) must still be visited, except for those in `seen`, which
  // were saved before a change.
  size_t limit_ = 0;
  size_t cursor_ = 0;
  std::vector<bool> seen_;
  SavedRows saved_{sizeof(Counter)};
};

}  // namespace edl
