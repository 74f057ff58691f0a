// Columns of text in Arrow's layout, and the hash of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "hash.h"

namespace edl {

// Texts `start` to `start + count - 1` of an Arrow array of strings or bytes.
struct TextColumn {
  const char* offsets;  // int64 if `wide`, else int32
  const char* data;
  const uint8_t* valid;  // one bit per text, 0: missing; nullptr: no text is missing
  size_t start;
  size_t count;
  bool wide;

  EDL_INLINE int64_t offset(size_t i) const {
    if (wide) {
      int64_t at;
      std::memcpy(&at, offsets + 8 * (start + i), 8);
      return at;
    }
    int32_t at;
    std::memcpy(&at, offsets + 4 * (start + i), 4);
    return at;
  }
  EDL_INLINE bool has(size_t i) const {
    return valid == nullptr || (valid[(start + i) >> 3] >> ((start + i) & 7) & 1);
  }
  EDL_INLINE std::string_view at(size_t i) const {
    const int64_t from = offset(i);
    return {data + from, static_cast<size_t>(offset(i + 1) - from)};
  }
};

EDL_INLINE uint64_t load_bytes(const char* p, size_t n) {
  uint64_t value = 0;
  std::memcpy(&value, p, n);
  return value;
}

EDL_INLINE uint64_t fold(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// wyhash, final version 4 (Wang Yi, public domain), with its default secret. Ids of saved models
// depend on every bit, so a test compares the hash with the published vectors.
EDL_INLINE uint64_t hash_text(std::string_view text, uint64_t seed) {
  constexpr uint64_t kSecret[4] = {0x2d358dccaa6c78a5ULL, 0x8bb84b93962eacc9ULL,
                                   0x4b33a62ed433d4a3ULL, 0x4d5a2da51de1aa47ULL};
  const char* p = text.data();
  const size_t n = text.size();
  seed ^= fold(seed ^ kSecret[0], kSecret[1]);
  uint64_t a = 0, b = 0;
  if (n <= 16) {
    if (n >= 4) {
      const size_t step = (n >> 3) << 2;
      a = load_bytes(p, 4) << 32 | load_bytes(p + step, 4);
      b = load_bytes(p + n - 4, 4) << 32 | load_bytes(p + n - 4 - step, 4);
    } else if (n > 0) {
      const auto byte = [p](size_t i) { return uint64_t{static_cast<uint8_t>(p[i])}; };
      a = byte(0) << 16 | byte(n >> 1) << 8 | byte(n - 1);
    }
  } else {
    size_t left = n;
    if (left >= 48) {
      uint64_t second = seed, third = seed;
      do {
        seed = fold(load_bytes(p, 8) ^ kSecret[1], load_bytes(p + 8, 8) ^ seed);
        second = fold(load_bytes(p + 16, 8) ^ kSecret[2], load_bytes(p + 24, 8) ^ second);
        third = fold(load_bytes(p + 32, 8) ^ kSecret[3], load_bytes(p + 40, 8) ^ third);
        p += 48;
        left -= 48;
      } while (left >= 48);
      seed ^= second ^ third;
    }
    for (; left > 16; left -= 16, p += 16) {
      seed = fold(load_bytes(p, 8) ^ kSecret[1], load_bytes(p + 8, 8) ^ seed);
    }
    a = load_bytes(p + left - 16, 8);
    b = load_bytes(p + left - 8, 8);
  }
  const auto product = static_cast<unsigned __int128>(a ^ kSecret[1]) * (b ^ seed);
  return fold(static_cast<uint64_t>(product) ^ kSecret[0] ^ n,
              static_cast<uint64_t>(product >> 64) ^ kSecret[1]);
}

// Hash of a missing value, so that missing values have a bucket like any other value.
EDL_INLINE uint64_t hash_missing(uint64_t seed) { return mix64(~seed); }

EDL_INLINE uint64_t hash_integer(int64_t value, uint64_t seed) {
  return mix64(static_cast<uint64_t>(value) ^ mix64(seed));
}

}  // namespace edl
