// Eviction of rows: those unused for too long, and the least recently used rows beyond the bound of
// the table. Counted ids are evicted by the same rules.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "hash.h"
#include "table.h"

namespace edl {
namespace {

constexpr size_t kSweep = size_t{1} << 17;        // entries that one call of evict() visits
constexpr size_t kMostEvicted = size_t{1} << 14;  // entries that one call of evict() removes
constexpr size_t kReadAll = size_t{1} << 16;      // up to so many entries, all ages are read
constexpr size_t kSample = 256;                   // for larger tables, entries read per sub-table
constexpr size_t kRoom = 16;                      // eviction stops at the bound minus 1/16 of it

}  // namespace

// The number of rows, and as many counters, that fit into max_bytes. Buckets double when a
// sub-table is filled to 7/10, a little earlier than the average because ids are spread randomly.
size_t Table::bound_of(const TableOptions& options) const {
  const auto rows = static_cast<size_t>(options.max_rows);
  const auto bytes = static_cast<size_t>(options.max_bytes);
  if (bytes == 0) return rows;
  const size_t bucket = sizeof(Bucket) + (counts_ ? Counters::kIndexBytes : 0);
  const size_t entry = layout_.stride + (counts_ ? sizeof(Counter) : 0);
  size_t fit = 0;
  for (size_t capacity = 64; capacity <= kMaxCapacity; capacity *= 2) {
    const size_t index = kSubTables * capacity * bucket;
    if (index >= bytes) break;
    fit = std::max(fit, std::min(kSubTables * capacity * 13 / 20, (bytes - index) / entry));
  }
  if (fit == 0) {
    throw std::invalid_argument("max_bytes " + std::to_string(bytes) + ": the smallest table has " +
                                std::to_string(kSubTables * 64 * bucket + entry));
  }
  return rows ? std::min(rows, fit) : fit;
}

// Access of eviction to rows.
struct Table::RowEntries {
  Table& table;

  size_t total() const { return table.rows_.load(std::memory_order_relaxed); }
  static size_t size(const SubTable& sub) { return sub.size; }
  static size_t used(const SubTable& sub) { return sub.rows_used; }
  // Last use of the entry; none if the entry is free.
  std::optional<int64_t> last_used(const SubTable& sub, size_t at) const {
    const RowMeta& m = table.meta(table.row_at(sub, at));
    return m.epoch == kFree ? std::nullopt : std::optional(m.last_used);
  }
  // Removes the entry and returns its id.
  int64_t remove(SubTable& sub, size_t at) const {
    char* row = table.row_at(sub, at);
    const int64_t id = table.meta(row).id;
    table.release(sub, row);
    return id;
  }
};

// Access of eviction to counters.
struct Table::CounterEntries {
  const std::atomic<size_t>& counted;

  size_t total() const { return counted.load(std::memory_order_relaxed); }
  static size_t size(const SubTable& sub) { return sub.counters.size(); }
  static size_t used(const SubTable& sub) { return sub.counters.used(); }
  static std::optional<int64_t> last_used(const SubTable& sub, size_t at) {
    const Counter& counter = sub.counters.at(at);
    return counter.count ? std::optional<int64_t>(counter.last_used) : std::nullopt;
  }
  static int64_t remove(SubTable& sub, size_t at) {
    const int64_t id = sub.counters.at(at).id;
    sub.counters.forget(id, hash_id(id));
    return id;
  }
};

template <typename Entries>
Table::Oldest Table::oldest(Entries entries, size_t excess) {
  const size_t total = entries.total();
  const bool all = total <= kReadAll;
  std::vector<int64_t> ages;
  for (SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    if (entries.size(sub) == 0) continue;
    const size_t used = entries.used(sub);
    for (size_t i = 0; i < (all ? used : kSample); ++i) {
      const auto age = entries.last_used(sub, all ? i : hash_id(int64_t(draws_++)) % used);
      if (age) ages.push_back(*age);
    }
  }
  if (ages.empty()) return {INT64_MIN, 0};
  // With a limit that is too low, the hand would make a full round for nothing, so the limit from a
  // sample is raised by a tenth. It is raised by at most a tenth of the remaining entries, for a
  // table that has grown to many times its bound while the evicting thread had to wait.
  const double share = std::min(1.0, double(excess) / double(std::max<size_t>(total, 1)));
  const double higher = share + 0.1 * std::min(share, 1 - share);
  const double wanted = all ? double(excess) : higher * double(ages.size()) + 2;
  const size_t k = std::min(static_cast<size_t>(wanted), ages.size());
  if (k == 0) return {INT64_MIN, 0};
  std::nth_element(ages.begin(), ages.begin() + (k - 1), ages.end());
  const int64_t limit = ages[k - 1];
  const size_t below = std::count_if(ages.begin(), ages.begin() + (k - 1),
                                     [limit](int64_t age) { return age < limit; });
  return {limit, (k - below) * total / ages.size() + !all};
}

template <typename Entries>
void Table::evict_from(Entries entries, Hand& hand, int64_t step, bool aged,
                       std::vector<int64_t>& removed) {
  if (aged && options_.max_age > 0 && hand.aging_left == 0) hand.aging_left = kSubTables + 1;
  const size_t wanted = bound_ - bound_ / kRoom;
  hand.shrinking = bound_ > 0 && entries.total() > (hand.shrinking ? wanted : bound_);
  if (!hand.shrinking && hand.aging_left == 0) return;
  Oldest limit{INT64_MIN, 0};
  if (hand.shrinking) limit = oldest(entries, entries.total() - wanted);
  const size_t most = removed.size() + kMostEvicted;
  size_t left = kSweep;
  while (left > 0 && removed.size() < most && (hand.shrinking || hand.aging_left > 0)) {
    SubTable& sub = subs_[hand.sub];
    std::lock_guard<std::mutex> guard(sub.lock);
    const size_t end = std::min(entries.used(sub), hand.at + std::min(kWalk, left));
    for (; hand.at < end; ++hand.at, --left) {
      const auto used = entries.last_used(sub, hand.at);
      if (!used) continue;
      const bool old = hand.aging_left > 0 && *used + options_.max_age < step;
      const bool tie = hand.shrinking && *used == limit.last_used && limit.ties > 0;
      if (!old && !tie && !(hand.shrinking && *used < limit.last_used)) continue;
      limit.ties -= tie && !old;
      removed.push_back(entries.remove(sub, hand.at));
      hand.shrinking = hand.shrinking && entries.total() > wanted;
    }
    if (hand.at < entries.used(sub)) continue;
    hand.at = 0;
    hand.sub = (hand.sub + 1) % kSubTables;
    hand.aging_left -= hand.aging_left > 0;
    left -= std::min<size_t>(left, 1);  // an empty sub-table also counts as a visit
  }
}

std::vector<int64_t> Table::evict(int64_t step, bool aged) {
  std::vector<int64_t> removed;
  std::unique_lock<std::mutex> alone(evicting_, std::try_to_lock);
  if (!alone || !optimizer_) return removed;
  evict_from(RowEntries{*this}, row_hand_, step, aged, removed);
  if (counts_) evict_from(CounterEntries{counted_}, counter_hand_, step, aged, removed);
  return removed;
}

}  // namespace edl
