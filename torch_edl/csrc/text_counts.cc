#include "text_counts.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>

namespace edl {
namespace {

constexpr size_t kBlock = 64;  // texts hashed, and slots prefetched, ahead of the lookups
constexpr size_t kMost = (size_t{1} << 31) - 1;

}  // namespace

size_t TextCounts::find_slot(std::string_view wanted, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    if (slot.place == 0) return at;
    if (slot.tag == tag && text(slot.place - 1) == wanted) return at;
  }
}

void TextCounts::grow() {
  std::vector<Slot> larger(slots_.size() * 2, Slot{0, 0});
  const size_t mask = larger.size() - 1;
  for (size_t place = 0; place < counts_.size(); ++place) {
    const uint64_t hash = hash_text(text(place), 0);
    size_t at = hash & mask;
    while (larger[at].place != 0) at = (at + 1) & mask;
    larger[at] = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(place + 1)};
  }
  slots_ = std::move(larger);
}

void TextCounts::add(const TextColumn& texts, const int64_t* counts) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::array<uint64_t, kBlock> hashes;
  for (size_t first = 0; first < texts.count; first += kBlock) {
    const size_t n = std::min(kBlock, texts.count - first);
    // At most half full, even if all texts of the block are new.
    while (2 * (counts_.size() + n) > slots_.size()) grow();
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = texts.has(first + i) ? hash_text(texts.at(first + i), 0) : 0;
      __builtin_prefetch(&slots_[hashes[i] & (slots_.size() - 1)]);
    }
    for (size_t i = 0; i < n; ++i) {
      if (!texts.has(first + i)) continue;
      const std::string_view found = texts.at(first + i);
      Slot& slot = slots_[find_slot(found, hashes[i])];
      const int64_t times = counts == nullptr ? 1 : counts[first + i];
      total_ += times;
      if (slot.place != 0) {
        counts_[slot.place - 1] += times;
        continue;
      }
      if (counts_.size() >= kMost) throw std::length_error("more than 2^31 distinct texts");
      data_.insert(data_.end(), found.begin(), found.end());
      offsets_.push_back(static_cast<int64_t>(data_.size()));
      counts_.push_back(times);
      slot = {static_cast<uint32_t>(hashes[i] >> 32), static_cast<uint32_t>(counts_.size())};
    }
  }
}

void TextCounts::find(const TextColumn& texts, int64_t* places) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::array<uint64_t, kBlock> hashes;
  for (size_t first = 0; first < texts.count; first += kBlock) {
    const size_t n = std::min(kBlock, texts.count - first);
    for (size_t i = 0; i < n; ++i) {
      hashes[i] = texts.has(first + i) ? hash_text(texts.at(first + i), 0) : 0;
      __builtin_prefetch(&slots_[hashes[i] & (slots_.size() - 1)]);
    }
    for (size_t i = 0; i < n; ++i) {
      const bool has = texts.has(first + i);
      const size_t at = has ? find_slot(texts.at(first + i), hashes[i]) : 0;
      places[first + i] = has ? static_cast<int64_t>(slots_[at].place) - 1 : -1;
    }
  }
}

std::vector<int64_t> TextCounts::all() const {
  std::vector<int64_t> places(size());
  std::iota(places.begin(), places.end(), int64_t{0});
  return places;
}

std::vector<int64_t> TextCounts::ranked(size_t limit, int64_t min_count) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int64_t> places;
  for (size_t place = 0; place < counts_.size(); ++place) {
    if (counts_[place] >= min_count) places.push_back(static_cast<int64_t>(place));
  }
  const size_t kept = std::min(limit, places.size());
  std::partial_sort(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(kept), places.end(),
                    [this](int64_t a, int64_t b) {
                      const auto x = static_cast<size_t>(a), y = static_cast<size_t>(b);
                      if (counts_[x] != counts_[y]) return counts_[x] > counts_[y];
                      return text(x) < text(y);
                    });
  places.resize(kept);
  return places;
}

void TextCounts::take(const std::vector<int64_t>& places, std::string* data,
                      std::vector<int64_t>* offsets, std::vector<int64_t>* counts) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  offsets->assign(1, 0);
  offsets->reserve(places.size() + 1);
  counts->reserve(places.size());
  for (const int64_t each : places) {
    const auto place = static_cast<size_t>(each);
    data->append(text(place));
    offsets->push_back(static_cast<int64_t>(data->size()));
    counts->push_back(counts_[place]);
  }
}

size_t TextCounts::size() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return counts_.size();
}

size_t TextCounts::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return data_.size();
}

int64_t TextCounts::total() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return total_;
}

}  // namespace edl
