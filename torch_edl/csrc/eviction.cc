// Which rows of a table go, and when: those unused for too long, and the least recently used ones of
// a table beyond its bound.
#include <algorithm>
#include <stdexcept>

#include "hash.h"
#include "table.h"

namespace edl {
namespace {

constexpr size_t kSweep = size_t{1} << 17;        // rows that one call of evict() visits
constexpr size_t kMostEvicted = size_t{1} << 14;  // rows that one call of evict() removes
constexpr size_t kCounted = size_t{1} << 16;      // up to so many rows, all are asked for their age
constexpr size_t kSample = 256;                   // beyond, so many of each sub-table
constexpr size_t kRoom = 16;                      // of a table beyond its bound, one row in 16 goes

}  // namespace

// The rows that fit into max_bytes: buckets double when a sub-table is filled to seven tenths, a
// little earlier than the average since ids are spread by chance.
size_t Table::bound_of(const TableOptions& options) const {
  const auto rows = static_cast<size_t>(options.max_rows);
  const auto bytes = static_cast<size_t>(options.max_bytes);
  if (bytes == 0) return rows;
  size_t fit = 0;
  for (size_t capacity = 64; capacity <= kMaxCapacity; capacity *= 2) {
    const size_t index = kSubTables * capacity * sizeof(Bucket);
    if (index >= bytes) break;
    fit = std::max(fit, std::min(kSubTables * capacity * 13 / 20, (bytes - index) / stride_));
  }
  if (fit == 0) {
    throw std::invalid_argument("max_bytes " + std::to_string(bytes) + ": the smallest table has " +
                                std::to_string(kSubTables * 64 * sizeof(Bucket) + stride_));
  }
  return rows ? std::min(rows, fit) : fit;
}

Table::Oldest Table::oldest(size_t excess) {
  const size_t rows = rows_.load(std::memory_order_relaxed);
  const bool all = rows <= kCounted;
  std::vector<int64_t> ages;
  for (SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    if (sub.size == 0) continue;
    for (size_t i = 0; i < (all ? sub.rows_used : kSample); ++i) {
      const RowMeta& m = meta(row_at(sub, all ? i : hash_id(int64_t(draws_++)) % sub.rows_used));
      if (m.epoch != kFree) ages.push_back(m.last_used);
    }
  }
  if (ages.empty()) return {INT64_MIN, 0};
  // A sample that puts the limit too low would send the hand round for nothing.
  const double share = std::min(1.0, double(excess) / double(std::max<size_t>(rows, 1)));
  const double wanted = all ? double(excess) : share * double(ages.size()) * 1.1 + 2;
  const size_t k = std::min(static_cast<size_t>(wanted), ages.size());
  if (k == 0) return {INT64_MIN, 0};
  std::nth_element(ages.begin(), ages.begin() + (k - 1), ages.end());
  const int64_t limit = ages[k - 1];
  const size_t below = std::count_if(ages.begin(), ages.begin() + (k - 1),
                                     [limit](int64_t age) { return age < limit; });
  return {limit, (k - below) * rows / ages.size() + !all};
}

std::vector<int64_t> Table::evict(int64_t step, bool aged) {
  std::vector<int64_t> removed;
  std::unique_lock<std::mutex> alone(evicting_, std::try_to_lock);
  if (!alone || !optimizer_) return removed;
  if (aged && options_.max_age > 0 && aging_left_ == 0) aging_left_ = kSubTables + 1;
  const size_t wanted = bound_ - bound_ / kRoom;
  const auto beyond = [&](size_t most) { return rows_.load(std::memory_order_relaxed) > most; };
  shrinking_ = bound_ > 0 && beyond(shrinking_ ? wanted : bound_);
  if (!shrinking_ && aging_left_ == 0) return removed;
  Oldest limit{INT64_MIN, 0};
  if (shrinking_) limit = oldest(rows_.load(std::memory_order_relaxed) - wanted);
  size_t left = kSweep;
  while (left > 0 && removed.size() < kMostEvicted && (shrinking_ || aging_left_ > 0)) {
    SubTable& sub = subs_[hand_sub_];
    std::lock_guard<std::mutex> guard(sub.lock);
    const size_t end = std::min(sub.rows_used, hand_ + std::min(kWalk, left));
    for (; hand_ < end; ++hand_, --left) {
      char* row = row_at(sub, hand_);
      const RowMeta& m = meta(row);
      if (m.epoch == kFree) continue;
      const bool old = aging_left_ > 0 && m.last_used + options_.max_age < step;
      const bool tie = shrinking_ && m.last_used == limit.last_used && limit.ties > 0;
      if (!old && !tie && !(shrinking_ && m.last_used < limit.last_used)) continue;
      limit.ties -= tie && !old;
      removed.push_back(m.id);
      release(sub, row);
      shrinking_ = shrinking_ && beyond(wanted);
    }
    if (hand_ < sub.rows_used) continue;
    hand_ = 0;
    hand_sub_ = (hand_sub_ + 1) % kSubTables;
    aging_left_ -= aging_left_ > 0;
    left -= std::min<size_t>(left, 1);  // empty sub-tables are visited, too
  }
  return removed;
}

}  // namespace edl
