#include "table.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "hash.h"
#include "ids.h"

namespace edl {
namespace {

constexpr size_t kRun = 4096;           // ids processed while the locks are held
constexpr size_t kBlock = 128;          // ids whose cache misses are in flight together
constexpr size_t kMaxPrefetch = 1024;   // bytes of a row to prefetch
constexpr size_t kSpareRows = 1024;     // rows of a sub-table on a disk that pulls leave to pushes

}  // namespace

Table::Table(std::string name, size_t dim, const std::string& initializer,
             const std::map<std::string, double>& initializer_args, int64_t seed,
             const Optimizer* optimizer, TableOptions options)
    : name_(std::move(name)),
      dim_(dim),
      initializer_(name_, seed, initializer, initializer_args, dim),
      optimizer_(optimizer ? std::optional<Optimizer>(*optimizer) : std::nullopt),
      options_(std::move(options)),
      slots_(optimizer_ ? optimizer_->slots().size() : 0),
      layout_(row_layout(dim, bytes_of(options_.dtype, dim), slots_, sizeof(RowMeta), alignof(RowMeta))),
      enough_(static_cast<uint32_t>(std::max<int64_t>(options_.min_count, 1))),
      counts_(optimizer_ && enough_ > 1),
      file_(options_.folder.empty()
                ? nullptr
                : std::make_unique<SlabFile>(options_.folder, layout_.meta_at, kSlabRows,
                                             sizeof(RowMeta))),
      spacing_(file_ ? layout_.meta_at : layout_.stride),
      arena_(kSlabRows * layout_.stride, kSubTables),
      bound_(bound_of(options_)) {
  for (SubTable& sub : subs_) {
    sub.saved = SavedRows(layout_.stride);
    sub.counters = Counters(&counter_arena_, &counted_);
    sub.scratch.resize(dim_);
    grow(sub);
  }
}

void Table::check_ids(const int64_t* ids, size_t n) const {
  if (options_.num_embeddings == 0) return;
  const auto bound = static_cast<uint64_t>(options_.num_embeddings);
  for (size_t i = 0; i < n; ++i) {
    if (static_cast<uint64_t>(ids[i]) >= bound) {
      throw std::invalid_argument("table " + name_ + ": id " + std::to_string(ids[i]) +
                                  " is outside [0, " + std::to_string(bound) +
                                  "); raise num_embeddings, or None for any id");
    }
  }
}

bool Table::make_room(SubTable& sub, size_t rows) {
  while (sub.free.size() + sub.slabs.size() * kSlabRows - sub.rows_used < rows) {
    char* slab = file_ ? file_->take() : arena_.take();
    if (!slab) return false;
    sub.slabs.push_back(slab);
  }
  return true;
}

void Table::prepare(const int64_t* ids, size_t n) {
  if (!file_) return;
  warm(ids, n);
  std::array<size_t, kSubTables> rows{};
  visit(ids, n, 0, Missing::kSkip, [&](size_t, const Found* found, size_t m) {
    for (size_t i = 0; i < m; ++i) {
      if (found[i].row) continue;
      if (!make_room(*found[i].sub, ++rows[found[i].sub - subs_.data()])) file_->throw_full(name_);
    }
  });
}

void Table::warm(const int64_t* ids, size_t n) {
  std::vector<char*> rows;
  rows.reserve(n);
  visit(ids, n, 0, Missing::kSkip, [&](size_t, const Found* found, size_t m) {
    for (size_t i = 0; i < m; ++i) {
      if (found[i].row) rows.push_back(found[i].row);
    }
  });
  file_->warm(rows);
}

char* Table::insert(SubTable& sub, int64_t id, uint64_t hash, Missing missing) {
  // Pulls leave room for rows that pushes create, so a push that has reserved room finds it.
  if (!make_room(sub, missing == Missing::kAddIfRoom && file_ ? kSpareRows : 1)) {
    if (missing == Missing::kAddIfRoom) return nullptr;
    file_->throw_full(name_);
  }
  if ((sub.size + 1) * 10 > (sub.mask + 1) * 7) {
    grow(sub);
  }
  char* row;
  if (!sub.free.empty()) {
    row = sub.free.back();
    sub.free.pop_back();
  } else {
    row = row_at(sub, sub.rows_used++);
  }
  begin_row(id, row, sub.scratch.data());
  for (size_t k = 0; k < slots_; ++k) {
    std::fill_n(slot(row, k), dim_, optimizer_->slot_initial()[k]);
  }
  // A row created after begin_snapshot() is not in the snapshot: it counts as already saved.
  meta(row) = {id, step_.load(std::memory_order_relaxed), 0, sub.epoch};
  size_t at = hash & sub.mask;
  while (sub.buckets[at].row) at = (at + 1) & sub.mask;
  sub.buckets[at] = {id, row};
  ++sub.size;
  rows_.fetch_add(1, std::memory_order_relaxed);
  return row;
}

void Table::grow(SubTable& sub) {
  const size_t capacity = sub.buckets ? (sub.mask + 1) * 2 : 64;
  if (capacity > kMaxCapacity) {
    throw std::length_error("table " + name_ + ": too many rows for one server; use more servers");
  }
  Pages pages(capacity * sizeof(Bucket));
  auto* buckets = reinterpret_cast<Bucket*>(pages.data());
  const size_t mask = capacity - 1, old = sub.buckets ? sub.mask + 1 : 0;
  for (size_t i = 0; i < old; ++i) {
    const Bucket& bucket = sub.buckets[i];
    if (!bucket.row) continue;
    size_t at = hash_id(bucket.id) & mask;
    while (buckets[at].row) at = (at + 1) & mask;
    buckets[at] = bucket;
  }
  sub.pages = std::move(pages);
  sub.buckets = buckets;
  sub.mask = mask;
}

// Linear probing without tombstones: later entries of the run move up into the hole (Knuth, TAOCP
// volume 3, algorithm 6.4 R).
void Table::erase(SubTable& sub, int64_t id) {
  size_t hole = hash_id(id) & sub.mask;
  while (sub.buckets[hole].id != id || !sub.buckets[hole].row) hole = (hole + 1) & sub.mask;
  for (size_t at = hole;;) {
    at = (at + 1) & sub.mask;
    if (!sub.buckets[at].row) break;
    const size_t home = hash_id(sub.buckets[at].id) & sub.mask;
    if (((at - home) & sub.mask) < ((at - hole) & sub.mask)) continue;
    sub.buckets[hole] = sub.buckets[at];
    hole = at;
  }
  sub.buckets[hole] = {0, nullptr};
  --sub.size;
}

void Table::release(SubTable& sub, char* row) {
  before_change(sub, row);
  erase(sub, meta(row).id);
  meta(row).epoch = kFree;
  sub.free.push_back(row);
  rows_.fetch_sub(1, std::memory_order_relaxed);
}

void Table::copy_whole(const char* row, char* to) const {
  std::memcpy(to, row, spacing_);
  if (file_) std::memcpy(to + layout_.meta_at, file_->meta(row), sizeof(RowMeta));
}

void Table::before_change(SubTable& sub, char* row) {
  if (!sub.saving) return;
  RowMeta& m = meta(row);
  if (m.epoch >= sub.epoch) return;
  copy_whole(row, sub.saved.push());
  m.epoch = sub.epoch;
}

// Calls work(from, found, m) for ids[from, from + m), block by block, while holding the locks. A
// row is null if the id has none and `missing` does not create it. All sub-tables are locked
// together, for microseconds, instead of one after the other with sorted ids: rows and gradients of
// a batch are then accessed in order, which halves the time of a push.
template <typename Work>
void Table::visit(const int64_t* ids, size_t n, size_t touched, Missing missing, Work work) {
  touched = std::min(touched, kMaxPrefetch);
  Found found[kBlock];
  uint64_t hashes[2 * kBlock];
  for (size_t start = 0; start < n; start += kRun) {
    const size_t stop = std::min(start + kRun, n);
    std::array<std::unique_lock<std::mutex>, kSubTables> locks;
    waiting_.fetch_add(1);
    for (size_t s = 0; s < kSubTables; ++s) locks[s] = std::unique_lock(subs_[s].lock);
    waiting_.fetch_sub(1);
    const auto look_ahead = [&](size_t from) {
      for (size_t i = from; i < std::min(from + kBlock, stop); ++i) {
        const uint64_t hash = hashes[i % (2 * kBlock)] = hash_id(ids[i]);
        const SubTable& sub = subs_[sub_table_of_hash(hash)];
        const Bucket* bucket = sub.buckets + (hash & sub.mask);
        __builtin_prefetch(bucket);
        __builtin_prefetch(bucket + 2);  // often the next cache line, where a quarter of the ids is
      }
    };
    look_ahead(start);
    for (size_t from = start; from < stop; from += kBlock) {
      look_ahead(from + kBlock);
      const size_t m = std::min(kBlock, stop - from);
      for (size_t i = 0; i < m; ++i) {
        const int64_t id = ids[from + i];
        const uint64_t hash = hashes[(from + i) % (2 * kBlock)];
        SubTable& sub = subs_[sub_table_of_hash(hash)];
        size_t at = hash & sub.mask;
        while (sub.buckets[at].id != id && sub.buckets[at].row) at = (at + 1) & sub.mask;
        char* row = sub.buckets[at].row;
        if (!row && missing != Missing::kSkip) row = insert(sub, id, hash, missing);
        found[i] = {row, &sub};
        if (row) prefetch_range(row, touched);
      }
      work(from, found, m);
    }
  }
}

void Table::begin_row(int64_t id, char* to, float* scratch) const {
  initializer_.fill(id, scratch);
  narrow(options_.dtype, scratch, to, dim_);
}

void Table::convert(const char* row, char* to, Dtype as, float* scratch) const {
  if (options_.dtype == Dtype::kFloat) {
    return narrow(as, reinterpret_cast<const float*>(row), to, dim_);
  }
  if (as == Dtype::kFloat) return widen(options_.dtype, row, reinterpret_cast<float*>(to), dim_);
  widen(options_.dtype, row, scratch, dim_);
  narrow(as, scratch, to, dim_);
}

void Table::pull(const int64_t* ids, size_t n, char* out, Dtype as, bool read_only) {
  check_ids(ids, n);
  // Only eviction needs the time of last use: without eviction, a pull writes nothing.
  const bool touch = !read_only && (options_.max_age > 0 || bound_ > 0);
  // A frozen table cannot evict, and the rows that it lacks have their initial values.
  const bool full = !optimizer_ && bound_ > 0 && rows_.load(std::memory_order_relaxed) >= bound_;
  const int64_t step = step_.load(std::memory_order_relaxed);
  const size_t bytes = bytes_of(as, dim_);
  std::vector<float> scratch(dim_);
  std::vector<char> initial;
  const auto give = [&](const char* row, char* to) {
    if (as == options_.dtype) return copy_row(to, row, bytes);
    convert(row, to, as, scratch.data());
  };
  const auto missing = read_only || full || counts_ ? Missing::kSkip : Missing::kAddIfRoom;
  if (file_) warm(ids, n);
  visit(ids, n, touch ? layout_.stride : layout_.values, missing,
        [&](size_t from, const Found* found, size_t m) {
          for (size_t i = 0; i < m; ++i) {
            char* to = out + (from + i) * bytes;
            char* row = found[i].row;
            if (!row) {
              initial.resize(layout_.values);
              begin_row(ids[from + i], initial.data(), scratch.data());
              give(initial.data(), to);
              continue;
            }
            give(row, to);
            if (touch && meta(row).last_used < step) {
              before_change(*found[i].sub, row);
              meta(row).last_used = step;
            }
          }
        });
}

void Table::push(const int64_t* ids, const float* grads, size_t n, double lr, int64_t step) {
  if (!optimizer_) throw std::invalid_argument("table " + name_ + ": frozen, it takes no gradient");
  check_ids(ids, n);
  if (has_duplicates(ids, n)) {
    std::vector<int64_t> inverse(n);
    const Partition one = unique_partition(ids, n, 1, inverse.data());
    std::vector<float> sums(one.unique.size() * dim_);
    scatter_add(grads, inverse.data(), n, dim_, sums.data(), one.unique.size());
    return push(one.unique.data(), sums.data(), one.unique.size(), lr, step);
  }
  if (file_) warm(ids, n);
  FlushDenormals flush;
  const Scalars scalars = optimizer_->scalars(lr, step);
  int64_t newest = step_.load(std::memory_order_relaxed);
  while (newest < step && !step_.compare_exchange_weak(newest, step)) {
  }
  const bool whole = options_.dtype == Dtype::kFloat;
  std::vector<float> values(whole ? 0 : kBlock * dim_);  // shorter rows, widened to float32
  const auto missing = counts_ ? Missing::kSkip : Missing::kAdd;
  visit(ids, n, layout_.stride, missing, [&](size_t from, const Found* found, size_t m) {
    Span spans[kBlock];
    char* rows[kBlock];
    size_t used = 0;
    if (counts_) prefetch_counters(ids + from, found, m);
    for (size_t i = 0; i < m; ++i) {
      char* at = found[i].row;
      if (!at && !(at = admit(*found[i].sub, ids[from + i], step))) continue;
      before_change(*found[i].sub, at);
      RowMeta& row = meta(at);
      row.last_used = std::max(row.last_used, step);
      row.count += row.count != UINT32_MAX;
      if (row.count < enough_) continue;
      rows[used] = at;
      Span& span = spans[used];
      span.value = whole ? reinterpret_cast<float*>(at) : values.data() + used * dim_;
      span.grad = grads + (from + i) * dim_;
      for (size_t k = 0; k < slots_; ++k) span.slots[k] = slot(at, k);
      span.first = row.count == enough_;
      ++used;
    }
    if (!whole) widen_rows(rows, used, values.data());
    optimizer_->apply(scalars, spans, used, dim_);
    if (!whole) round_rows(rows, used, values.data(), step);
  });
}

void Table::widen_rows(char* const* rows, size_t n, float* values) const {
  for (size_t i = 0; i < n; ++i) widen(options_.dtype, rows[i], values + i * dim_, dim_);
}

void Table::round_rows(char* const* rows, size_t n, const float* values, int64_t step) const {
  const uint64_t update = mix64(static_cast<uint64_t>(step));
  for (size_t i = 0; i < n; ++i) {
    const auto key = static_cast<uint32_t>(mix64(update ^ hash_id(meta(rows[i]).id)));
    narrow_by_chance(options_.dtype, values + i * dim_, rows[i], dim_, key);
  }
}

void Table::load(const Chunk& rows, size_t n) {
  check_ids(rows.ids, n);
  const auto missing = Missing::kAdd;
  visit(rows.ids, n, layout_.stride, missing, [&](size_t from, const Found* found, size_t m) {
    for (size_t i = 0; i < m; ++i) {
      const size_t at = from + i;
      char* row = found[i].row;
      if (counted_ > 0) found[i].sub->counters.forget(rows.ids[at], hash_id(rows.ids[at]));
      before_change(*found[i].sub, row);
      narrow(options_.dtype, rows.vectors + at * dim_, row, dim_);
      for (size_t k = 0; k < slots_; ++k) {
        if (rows.slots) {
          std::memcpy(slot(row, k), rows.slots + (at * slots_ + k) * dim_, dim_ * sizeof(float));
        } else {
          std::fill_n(slot(row, k), dim_, optimizer_->slot_initial()[k]);
        }
      }
      meta(row).last_used = rows.last_used ? rows.last_used[at] : 0;
      const int64_t count = rows.count ? rows.count[at] : 0;
      meta(row).count = static_cast<uint32_t>(std::clamp<int64_t>(count, 0, UINT32_MAX));
    }
  });
}

void Table::remove(const int64_t* ids, size_t n) {
  const auto missing = Missing::kSkip;
  visit(ids, n, layout_.stride, missing, [&](size_t from, const Found* found, size_t m) {
    for (size_t i = 0; i < m; ++i) {
      SubTable& sub = *found[i].sub;
      char* row = found[i].row;
      if (!row) {
        sub.counters.forget(ids[from + i], hash_id(ids[from + i]));
      } else if (meta(row).epoch != kFree) {  // a duplicate id has already been removed
        release(sub, row);
      }
    }
  });
}

size_t Table::size() const {
  size_t total = 0;
  for (const SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    total += sub.size;
  }
  return total;
}

size_t Table::bytes() const {
  size_t total = 0;
  for (const SubTable& sub : subs_) {
    std::lock_guard<std::mutex> guard(sub.lock);
    total += sub.rows_used * layout_.stride + (sub.mask + 1) * sizeof(Bucket) + sub.counters.bytes();
  }
  return total;
}

}  // namespace edl
