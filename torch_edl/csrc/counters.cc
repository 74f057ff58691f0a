#include "counters.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "hash.h"

namespace edl {

size_t Counters::bucket_of(int64_t id, uint64_t hash) const {
  const auto low = static_cast<uint32_t>(mask_);
  const uint32_t wanted = tag(hash);
  size_t bucket = hash & mask_;
  for (; index_[bucket] & low; bucket = (bucket + 1) & mask_) {
    if ((index_[bucket] & ~low) == wanted && at(number_in(bucket)).id == id) break;
  }
  return bucket;
}

uint32_t Counters::add(int64_t id, uint64_t hash, uint32_t enough, int64_t step) {
  const auto now = std::min(static_cast<uint64_t>(step), Counter::kMostStep);
  if (index_) {
    const size_t bucket = bucket_of(id, hash);
    if (index_[bucket]) {
      const size_t number = number_in(bucket);
      const auto count = static_cast<uint32_t>(entry(number).count) + 1;
      if (count >= enough) {
        remove(bucket);
        return count;
      }
      before_change(number);
      entry(number).count = count;
      entry(number).last_used = std::max<uint64_t>(entry(number).last_used, now);
      return count;
    }
  }
  if (enough <= 1) return 1;
  Counter& made = entry(take(id, hash));
  made.count = 1;
  made.last_used = now;
  return 1;
}

void Counters::set(int64_t id, uint64_t hash, int64_t count, int64_t last_used) {
  size_t number;
  if (const size_t bucket = index_ ? bucket_of(id, hash) : 0; index_ && index_[bucket]) {
    number = number_in(bucket);
    before_change(number);
  } else {
    number = take(id, hash);
  }
  const auto most = static_cast<int64_t>(Counter::kMostStep);
  entry(number).count = std::clamp<int64_t>(count, 1, int64_t{Counter::kMostCount});
  entry(number).last_used = std::clamp<int64_t>(last_used, 0, most);
}

void Counters::forget(int64_t id, uint64_t hash) {
  if (!index_) return;
  const size_t bucket = bucket_of(id, hash);
  if (index_[bucket]) remove(bucket);
}

// Creates an entry for an id that has none; its count is 0.
size_t Counters::take(int64_t id, uint64_t hash) {
  if (!index_ || (size_ + 1) * 10 > (mask_ + 1) * 7) grow();
  size_t number = free_;
  if (number != kNone) {
    // An entry created after begin_snapshot() is not in the snapshot.
    if (number >= cursor_ && number < limit_) seen_[number] = true;
    free_ = static_cast<size_t>(entry(number).id);
  } else {
    if (used_ == slabs_.size() * kSlabEntries) {
      slabs_.push_back(reinterpret_cast<Counter*>(arena_->take()));
    }
    number = used_++;
  }
  entry(number).id = id;
  const size_t bucket = bucket_of(id, hash);
  index_[bucket] = tag(hash) | static_cast<uint32_t>(number + 1);
  ++size_;
  total_->fetch_add(1, std::memory_order_relaxed);
  return number;
}

// See Table::erase.
void Counters::remove(size_t bucket) {
  const size_t number = number_in(bucket);
  before_change(number);
  entry(number) = {static_cast<int64_t>(free_), 0, 0};
  free_ = number;
  size_t hole = bucket;
  for (size_t at = hole;;) {
    at = (at + 1) & mask_;
    if (!index_[at]) break;
    const size_t home = hash_id(entry(number_in(at)).id) & mask_;
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
    index_[hole] = index_[at];
    hole = at;
  }
  index_[hole] = 0;
  --size_;
  total_->fetch_sub(1, std::memory_order_relaxed);
}

void Counters::grow() {
  const size_t capacity = index_ ? (mask_ + 1) * 2 : kFirstCapacity;
  if (capacity > kMaxCapacity) {
    throw std::length_error("too many ids are counted for one server; use more servers");
  }
  Pages pages(capacity * kIndexBytes);
  index_ = reinterpret_cast<uint32_t*>(pages.data());
  pages_ = std::move(pages);
  mask_ = capacity - 1;
  for (size_t number = 0; number < used_; ++number) {
    if (entry(number).count == 0) continue;
    const uint64_t hash = hash_id(entry(number).id);
    size_t bucket = hash & mask_;
    while (index_[bucket]) bucket = (bucket + 1) & mask_;
    index_[bucket] = tag(hash) | static_cast<uint32_t>(number + 1);
  }
}

size_t Counters::bytes() const {
  return used_ * sizeof(Counter) + (index_ ? (mask_ + 1) * kIndexBytes : 0);
}

void Counters::begin_snapshot() {
  limit_ = used_;
  cursor_ = 0;
  seen_.assign(limit_, false);
}

size_t Counters::next(size_t most, Counter* to) {
  size_t given = 0, left = most;
  for (; left > 0 && saved_.size() > 0; --left, saved_.pop()) {
    to[given++] = *reinterpret_cast<const Counter*>(saved_.back());
  }
  for (; left > 0 && cursor_ < limit_; --left, ++cursor_) {
    if (!seen_[cursor_] && at(cursor_).count > 0) to[given++] = at(cursor_);
  }
  return given;
}

SavedRows Counters::end_snapshot() {
  limit_ = cursor_ = 0;
  seen_ = {};
  return std::exchange(saved_, SavedRows(sizeof(Counter)));
}

void Counters::before_change(size_t number) {
  if (number < cursor_ || number >= limit_ || seen_[number]) return;
  std::memcpy(saved_.push(), &entry(number), sizeof(Counter));
  seen_[number] = true;
}

}  // namespace edl
