// How often each text of a column occurs, and the place of each text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "text.h"

namespace edl {

// Distinct texts in the order in which they came, each with a count. Thread-safe.
class TextCounts {
 public:
  // Adds the texts, each `counts[i]` times (nullptr: once); what is missing is left out.
  void add(const TextColumn& texts, const int64_t* counts);

  // The place of each text; -1: not there, or missing.
  void find(const TextColumn& texts, int64_t* places) const;

  // Places of all texts, in the order of arrival.
  std::vector<int64_t> all() const;

  // Places of the texts that occur `min_count` times or more, the most frequent first and equally
  // frequent ones in the order of their bytes; the first `limit` of them.
  std::vector<int64_t> ranked(size_t limit, int64_t min_count) const;

  // The texts at `places`, one after the other, and where each begins; and their counts.
  void take(const std::vector<int64_t>& places, std::string* data, std::vector<int64_t>* offsets,
            std::vector<int64_t>* counts) const;

  size_t size() const;
  size_t bytes() const;   // of the texts
  int64_t total() const;  // sum of the counts

 private:
  struct Slot {
    uint32_t tag;    // upper half of the hash
    uint32_t place;  // in the order of arrival, plus 1; 0: empty
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
