#include "ids.h"

#include <algorithm>
#include <cstring>

#include "hash.h"

namespace edl {
namespace {

// An open-addressing set of ids, one per thread. A new generation number empties the set, because
// clearing the memory would cost as much as using it.
class Scratch {
 public:
  struct Entry {
    int64_t id;
    uint32_t place;
    uint32_t generation;
  };

  // Empties the set and makes room for n ids.
  void begin(size_t n) {
    size_t capacity = 64;
    while (capacity < 2 * n) capacity *= 2;
    // The memory for an unusually large batch must not be kept for ever.
    if (capacity > entries_.size() || capacity * 64 < entries_.size()) {
      entries_.assign(capacity, Entry{0, 0, 0});
      entries_.shrink_to_fit();
      generation_ = 0;
    }
    mask_ = capacity - 1;
    if (++generation_ == 0) {
      std::fill(entries_.begin(), entries_.end(), Entry{0, 0, 0});
      generation_ = 1;
    }
  }

  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[hash & mask_], 1); }

  // Returns the place of the id. A new id is inserted with `place`, and `added` is set.
  EDL_INLINE uint32_t find(int64_t id, uint64_t hash, uint32_t place, bool* added) {
    for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.generation != generation_) {
        entry = {id, place, generation_};
        *added = true;
        return place;
      }
      if (entry.id == id) {
        *added = false;
        return entry.place;
      }
    }
  }

 private:
  std::vector<Entry> entries_;
  size_t mask_ = 0;
  uint32_t generation_ = 0;
};

thread_local Scratch scratch;
constexpr size_t kAhead = 16;  // distance of the prefetch in ids

size_t unique_count(const int64_t* ids, size_t n) {
  scratch.begin(n);
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    bool added;
    scratch.find(ids[i], hash_id(ids[i]), 0, &added);
    count += added;
  }
  return count;
}

}  // namespace

Partition unique_partition(const int64_t* ids, size_t n, uint32_t shards, int64_t* inverse) {
  Partition result;
  thread_local std::vector<uint32_t> owners;
  auto& unique = result.unique;
  unique.reserve(n);
  owners.clear();
  owners.reserve(shards > 1 ? n : 0);
  scratch.begin(n);
  std::vector<int64_t>& offsets = result.offsets;
  offsets.assign(shards + 1, 0);
  uint64_t ring[kAhead];
  for (size_t i = 0; i < std::min(kAhead, n); ++i) {
    ring[i] = hash_id(ids[i]);
    scratch.prefetch(ring[i]);
  }
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = ring[i % kAhead];
    if (i + kAhead < n) {
      const uint64_t next = hash_id(ids[i + kAhead]);
      ring[i % kAhead] = next;
      scratch.prefetch(next);
    }
    bool added;
    inverse[i] = scratch.find(ids[i], hash, static_cast<uint32_t>(unique.size()), &added);
    if (added) {
      unique.push_back(ids[i]);
      if (shards > 1) {
        owners.push_back(owner_of_hash(hash, shards));
        ++offsets[owners.back() + 1];
      }
    }
  }
  if (shards == 1) {
    offsets[1] = static_cast<int64_t>(unique.size());
    return result;
  }
  for (uint32_t s = 0; s < shards; ++s) offsets[s + 1] += offsets[s];
  std::vector<int64_t> next(offsets.begin(), offsets.end() - 1), grouped(unique.size());
  thread_local std::vector<uint32_t> place;
  place.resize(unique.size());
  for (size_t u = 0; u < unique.size(); ++u) {
    const int64_t to = next[owners[u]]++;
    grouped[to] = unique[u];
    place[u] = static_cast<uint32_t>(to);
  }
  unique.swap(grouped);
  for (size_t i = 0; i < n; ++i) inverse[i] = place[inverse[i]];
  return result;
}

// For usual batches, a set of 32-bit tags fits into the level-1 cache, while a set of ids would
// not. Two different ids with equal tags are rare; such a batch is checked again with full ids.
bool has_duplicates(const int64_t* ids, size_t n) {
  thread_local std::vector<uint32_t> tags;
  size_t capacity = 64;
  while (capacity < 2 * n) capacity *= 2;
  tags.assign(capacity, 0);
  const size_t mask = capacity - 1;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = hash_id(ids[i]);
    const uint32_t tag = static_cast<uint32_t>(hash >> 32) | 1;  // 0: empty
    size_t at = hash & mask;
    for (; tags[at]; at = (at + 1) & mask) {
      if (tags[at] == tag) return unique_count(ids, n) < n;
    }
    tags[at] = tag;
  }
  return false;
}

namespace {

template <size_t kDim>
EDL_INLINE bool gather_rows(const float* rows, size_t rows_n, const int64_t* inverse, size_t n,
                            size_t dim, float* out) {
  const size_t d = kDim ? kDim : dim;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(rows + inverse[i + kAhead] * static_cast<int64_t>(d));
    const uint64_t from = static_cast<uint64_t>(inverse[i]);
    if (from >= rows_n) return false;
    std::memcpy(out + i * d, rows + from * d, d * sizeof(float));
  }
  return true;
}

template <size_t kDim>
EDL_INLINE bool sum_rows(const float* __restrict grads, const int64_t* inverse, size_t n,
                         size_t dim, float* __restrict out, size_t rows_n) {
  const size_t d = kDim ? kDim : dim;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(out + inverse[i + kAhead] * static_cast<int64_t>(d), 1);
    const uint64_t to = static_cast<uint64_t>(inverse[i]);
    if (to >= rows_n) return false;
    const float* __restrict from = grads + i * d;
    float* __restrict sum = out + to * d;
    for (size_t j = 0; j < d; ++j) sum[j] += from[j];
  }
  return true;
}

}  // namespace

EDL_CLONES bool gather(const float* rows, size_t rows_n, const int64_t* inverse, size_t n,
                       size_t dim, float* out) {
  switch (dim) {
    case 1: return gather_rows<1>(rows, rows_n, inverse, n, dim, out);
    case 8: return gather_rows<8>(rows, rows_n, inverse, n, dim, out);
    case 16: return gather_rows<16>(rows, rows_n, inverse, n, dim, out);
    case 32: return gather_rows<32>(rows, rows_n, inverse, n, dim, out);
    case 64: return gather_rows<64>(rows, rows_n, inverse, n, dim, out);
    default: return gather_rows<0>(rows, rows_n, inverse, n, dim, out);
  }
}

EDL_CLONES bool scatter_add(const float* grads, const int64_t* inverse, size_t n, size_t dim,
                            float* out, size_t rows_n) {
  switch (dim) {
    case 1: return sum_rows<1>(grads, inverse, n, dim, out, rows_n);
    case 8: return sum_rows<8>(grads, inverse, n, dim, out, rows_n);
    case 16: return sum_rows<16>(grads, inverse, n, dim, out, rows_n);
    case 32: return sum_rows<32>(grads, inverse, n, dim, out, rows_n);
    case 64: return sum_rows<64>(grads, inverse, n, dim, out, rows_n);
    default: return sum_rows<0>(grads, inverse, n, dim, out, rows_n);
  }
}

}  // namespace edl
