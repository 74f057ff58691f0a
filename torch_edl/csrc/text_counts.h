// Counts and places of the distinct texts of a column.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "text.h"

namespace edl {

// Distinct texts in order of arrival, each with a count. Thread-safe.
class TextCounts {
 public:
  // Adds each text `counts[i]` times (nullptr: once); missing texts are skipped.
  void add(const TextColumn& texts, const int64_t* counts);

  // The place of each text; -1 if the text is unknown or missing.
  void find(const TextColumn& texts, int64_t* places) const;

  // Places of all texts, in order of arrival.
  std::vector<int64_t> all() const;

  // Places of the first `limit` texts that occur at least `min_count` times, most frequent first;
  // equally frequent texts are sorted by their bytes.
  std::vector<int64_t> ranked(size_t limit, int64_t min_count) const;

  // The texts at `places` concatenated, the start of each, and their counts.
  void take(const std::vector<int64_t>& places, std::string* data, std::vector<int64_t>* offsets,
            std::vector<int64_t>* counts) const;

  size_t size() const;
  size_t bytes() const;   // size of the texts
  int64_t total() const;  // sum of the counts

 private:
  struct Slot {
    uint32_t tag;    // upper half of the hash
    uint32_t place;  // place in order of arrival, plus 1; 0: empty
  };

  std::string_view text(size_t place) const {
    return {data_.data() + offsets_[place], static_cast<size_t>(offsets_[place + 1] - offsets_[place])};
  }
  size_t find_slot(std::string_view text, uint64_t hash) const;
  void grow();

  mutable std::mutex mutex_;
  std::vector<Slot> slots_ = std::vector<Slot>(64, Slot{0, 0});
  std::vector<char> data_;
  std::vector<int64_t> offsets_{0};
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
};

}  // namespace edl
