// Reads a table while it changes: all rows as of one moment, or page by page.
//
// Whole rows are copied under a lock, some at a time, to memory that is already mapped, and are
// split without the lock. The first write to a new array maps its pages, which takes milliseconds
// each time; with the lock held, pushes would wait (60 ms, measured on 1 GB).
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <thread>

#include "table.h"

namespace edl {
namespace {

constexpr int kRowBits = 48;  // bits of a cursor for the row; the sub-table is above them

// Rows that are copied under one lock.
size_t rows_at_once(size_t stride) { return std::max<size_t>(1, (size_t{16} << 10) / stride); }

}  // namespace

void Table::begin_snapshot() {
  end_snapshot();  // ends an earlier snapshot that was not read completely
  ++epoch_;
  for (SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    sub.saving = true;
    sub.epoch = epoch_;
    sub.limit = sub.rows_used;
    sub.cursor = 0;
    sub.counters.begin_snapshot();
  }
}

size_t Table::snapshot_left() const {
  size_t left = 0;
  for (const SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    if (sub.saving) left += sub.limit - sub.cursor + sub.saved.size();
  }
  return left;
}

void Table::emit(const char* row, const Chunk& out, size_t at) const {
  const auto& m = *reinterpret_cast<const RowMeta*>(row + layout_.meta_at);
  out.ids[at] = m.id;
  out.last_used[at] = m.last_used;
  out.count[at] = m.count;
  widen(options_.dtype, row, out.vectors + at * dim_, dim_);
  std::memcpy(out.slots + at * slots_ * dim_, row + layout_.slots_at,
              slots_ * dim_ * sizeof(float));
}

// Without a pause, a thread that locks again at once is faster than the threads that it has woken,
// and pushes wait for the whole walk (200 ms, measured on 1 GB).
void Table::give_way() const {
  for (int i = 0; i < 100 && waiting_.load() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

size_t Table::take_saved(SubTable& sub, size_t most, char* to) {
  const size_t n = std::min(most, sub.saved.size());
  for (size_t i = 0; i < n; ++i, sub.saved.pop()) {
    std::memcpy(to + i * layout_.stride, sub.saved.back(), layout_.stride);
  }
  return n;
}

size_t Table::take_next(SubTable& sub, size_t most, char* to) {
  size_t n = 0;
  for (const size_t end = std::min(sub.limit, sub.cursor + most); sub.cursor < end; ++sub.cursor) {
    char* row = row_at(sub, sub.cursor);
    if (meta(row).epoch >= sub.epoch) continue;  // kFree is the largest epoch
    copy_whole(row, to + n++ * layout_.stride);
    meta(row).epoch = sub.epoch;
  }
  return n;
}

// Without the lock, since reads of the disk take long.
void Table::warm_next(const SubTable& sub, size_t at, size_t rows) const {
  if (!file_) return;
  const char* from;
  {
    std::lock_guard<std::mutex> guard(sub.lock);
    if (at >= sub.rows_used) return;
    from = row_at(sub, at);
  }
  file_->warm_range(from, std::min(rows, kSlabRows - at % kSlabRows));
}

size_t Table::next_chunk(size_t most, const Chunk& out) {
  const size_t at_once = rows_at_once(layout_.stride);
  std::vector<char> copies(at_once * layout_.stride);
  size_t given = 0;
  const auto take_all = [&](auto take, auto has_more, auto prepare) {
    for (SubTable& sub : subs_) {
      for (bool more = true; more && given < most;) {
        give_way();
        prepare(sub);
        size_t taken;
        {
          std::lock_guard<std::mutex> guard(sub.lock);
          taken = (this->*take)(sub, std::min(most - given, at_once), copies.data());
          more = has_more(sub);
        }
        for (size_t i = 0; i < taken; ++i) emit(&copies[i * layout_.stride], out, given++);
      }
    }
  };
  // Saved rows first, because their memory would grow.
  take_all(&Table::take_saved, [](const SubTable& sub) { return sub.saved.size() > 0; },
           [](const SubTable&) {});
  take_all(&Table::take_next, [](const SubTable& sub) { return sub.cursor < sub.limit; },
           [&](const SubTable& sub) { warm_next(sub, sub.cursor, at_once); });
  return given;
}

void Table::end_snapshot() {
  for (SubTable& sub : subs_) {
    SavedRows saved(layout_.stride), counters;
    std::lock_guard<std::mutex> guard(sub.lock);
    sub.saving = false;
    sub.limit = sub.cursor = 0;
    std::swap(sub.saved, saved);  // freed after the lock was released
    counters = sub.counters.end_snapshot();
  }
}

size_t Table::scan(int64_t* cursor, size_t most, int64_t* ids, float* vectors) const {
  size_t number = static_cast<uint64_t>(*cursor) >> kRowBits;
  size_t at = static_cast<uint64_t>(*cursor) & ((size_t{1} << kRowBits) - 1);
  if (number >= kSubTables) throw std::invalid_argument("cursor: not one that a call gave");
  const size_t at_once = rows_at_once(layout_.stride);
  std::vector<char> copies(at_once * layout_.stride);
  size_t given = 0;
  for (; number < kSubTables; ++number, at = 0) {
    const SubTable& sub = subs_[number];
    for (bool more = true; more;) {
      size_t taken = 0;
      bool full = false;
      give_way();
      warm_next(sub, at, at_once);
      {
        std::lock_guard<std::mutex> guard(sub.lock);
        for (const size_t end = std::min(sub.rows_used, at + at_once); at < end; ++at) {
          char* row = row_at(sub, at);
          if (meta(row).epoch == kFree) continue;
          full = given + taken == most;
          if (full) break;
          copy_whole(row, &copies[taken++ * layout_.stride]);
        }
        more = at < sub.rows_used;
      }
      for (size_t i = 0; i < taken; ++i, ++given) {
        const char* row = &copies[i * layout_.stride];
        ids[given] = reinterpret_cast<const RowMeta*>(row + layout_.meta_at)->id;
        widen(options_.dtype, row, vectors + given * dim_, dim_);
      }
      if (full) {
        *cursor = static_cast<int64_t>(number << kRowBits | at);
        return given;
      }
    }
  }
  *cursor = -1;
  return given;
}

std::vector<std::pair<uint32_t, int64_t>> Table::most_updated(size_t most) const {
  const std::greater<> order;
  std::vector<std::pair<uint32_t, int64_t>> found;  // a heap with the fewest updates first
  for (const SubTable& sub : subs_) {
    for (size_t at = 0, used = 1; at < used;) {
      give_way();
      std::lock_guard<std::mutex> guard(sub.lock);
      used = sub.rows_used;
      for (const size_t end = std::min(used, at + kWalk); at < end; ++at) {
        const RowMeta& m = meta(row_at(sub, at));
        const uint32_t enough = found.size() < most ? 0 : found.front().first;
        if (m.epoch == kFree || m.count <= enough) continue;
        if (found.size() == most) {
          std::pop_heap(found.begin(), found.end(), order);
          found.pop_back();
        }
        found.emplace_back(m.count, m.id);
        std::push_heap(found.begin(), found.end(), order);
      }
    }
  }
  std::sort_heap(found.begin(), found.end(), order);
  return found;
}

}  // namespace edl
