// Counts of ids that have no row yet, and these counts in a snapshot.
#include <algorithm>
#include <array>

#include "hash.h"
#include "table.h"

namespace edl {

char* Table::admit(SubTable& sub, int64_t id, int64_t step) {
  const uint64_t hash = hash_id(id);
  if (sub.counters.add(id, hash, enough_, step) < enough_) return nullptr;
  char* row = insert(sub, id, hash, Missing::kAdd);
  meta(row).count = enough_ - 1;
  return row;
}

void Table::prefetch_counters(const int64_t* ids, const Found* found, size_t n) const {
  for (size_t i = 0; i < n; ++i) {
    if (!found[i].row) found[i].sub->counters.prefetch(hash_id(ids[i]));
  }
}

void Table::load_counts(const CountChunk& counts, size_t n) {
  check_ids(counts.ids, n);
  if (!counts_) return;
  for (size_t i = 0; i < n; ++i) {
    const int64_t id = counts.ids[i];
    const uint64_t hash = hash_id(id);
    SubTable& sub = subs_[sub_table_of_hash(hash)];
    std::lock_guard<std::mutex> guard(sub.lock);
    size_t at = hash & sub.mask;
    while (sub.buckets[at].id != id && sub.buckets[at].row) at = (at + 1) & sub.mask;
    if (!sub.buckets[at].row) sub.counters.set(id, hash, counts.count[i], counts.last_used[i]);
  }
}

size_t Table::counts_left() const {
  size_t left = 0;
  for (const SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    left += sub.counters.snapshot_left();
  }
  return left;
}

// Releases the lock before the new arrays are written, as next_chunk() does.
size_t Table::next_counts(size_t most, const CountChunk& out) {
  std::array<Counter, kWalk> copies;
  size_t given = 0;
  for (SubTable& sub : subs_) {
    for (bool more = true; more && given < most;) {
      give_way();
      size_t taken;
      {
        std::lock_guard<std::mutex> guard(sub.lock);
        taken = sub.counters.next(std::min(most - given, kWalk), copies.data());
        more = sub.counters.snapshot_left() > 0;
      }
      for (size_t i = 0; i < taken; ++i, ++given) {
        out.ids[given] = copies[i].id;
        out.count[given] = copies[i].count;
        out.last_used[given] = static_cast<int64_t>(copies[i].last_used);
      }
    }
  }
  return given;
}

}  // namespace edl
