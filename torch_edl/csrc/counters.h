// How often ids were seen that have no row yet: what admission costs an id.
//
// 16 bytes an id, in slabs that never move, and 6 to 12 of index: linear probing over numbers of
// entries, the upper bits of which are a part of the hash, so that few probes read an entry. An
// entry without an id is in a list of its like, and is used again.
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

  int64_t id;                                // of a free entry: the next free one
  uint64_t count : kCountBits;               // 0: free
  uint64_t last_used : 64 - kCountBits;      // the update that named the id last
};
static_assert(sizeof(Counter) == 16);

// The counters of a sub-table, whose lock the caller has.
class Counters {
 public:
  static constexpr size_t kSlabEntries = 4096;
  static constexpr size_t kFirstCapacity = 64;
  static constexpr size_t kIndexBytes = sizeof(uint32_t);  // of a bucket
  static constexpr size_t kSlabBytes = kSlabEntries * sizeof(Counter);

  Counters() = default;
  // total: counters of all sub-tables.
  Counters(SlabArena* arena, std::atomic<size_t>* total) : arena_(arena), total_(total) {}

  // Counts an id once more. Returns how often it was seen; if that is `enough`, forgets it.
  uint32_t add(int64_t id, uint64_t hash, uint32_t enough, int64_t step);
  void set(int64_t id, uint64_t hash, int64_t count, int64_t last_used);
  // An id without a counter is no error.
  void forget(int64_t id, uint64_t hash);
  void prefetch(uint64_t hash) const {
    if (index_) __builtin_prefetch(index_ + (hash & mask_));
  }
  size_t size() const { return size_; }
  size_t bytes() const;

  // Entries by number, for the hand of eviction; count 0: free.
  size_t used() const { return used_; }
  const Counter& at(size_t number) const {
    return slabs_[number / kSlabEntries][number % kSlabEntries];
  }

  // A snapshot, as that of the rows: an entry is copied before it changes, or by next().
  void begin_snapshot();
  size_t snapshot_left() const { return limit_ - cursor_ + saved_.size(); }
  // Up to `most` counters; visits as many entries at most.
  size_t next(size_t most, Counter* to);
  // Returns copies whose memory is to go after the lock.
  SavedRows end_snapshot();

 private:
  static constexpr size_t kMaxCapacity = size_t{1} << 28;
  static constexpr size_t kNone = ~size_t{0};

  Counter& entry(size_t number) { return slabs_[number / kSlabEntries][number % kSlabEntries]; }
  // A bucket holds the number of an entry, counted from 1, and above it bits of the hash.
  uint32_t tag(uint64_t hash) const {
    return static_cast<uint32_t>(hash >> 32) & ~static_cast<uint32_t>(mask_);
  }
  // The bucket of the id, or the empty one where it would be.
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
  size_t used_ = 0;  // entries ever taken from the slabs
  size_t free_ = kNone;
  // Snapshot: entries in [cursor, limit) are still to be visited, unless `seen` says that a change
  // came first.
  size_t limit_ = 0;
  size_t cursor_ = 0;
  std::vector<bool> seen_;
  SavedRows saved_{sizeof(Counter)};
};

}  // namespace edl
