// Memory layout of a row, and copies of rows.
#pragma once

#include <cstddef>
#include <cstring>

namespace edl {

// Layout of a row in bytes from its start: the values (of the table's dtype), the slots of the
// optimizer (always float32), and the metadata.
struct RowLayout {
  size_t values;  // size of the values
  size_t slots_at;
  size_t meta_at;
  size_t stride;  // distance between two rows
};

inline void prefetch_range(const char* start, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(start + at, 1);
}

inline size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// The values of a row are in as few cache lines as possible. Measured on 1M rows of dim 16, this
// makes a pull a third faster.
inline size_t row_alignment(size_t bytes) { return (bytes - 1) % 64 < 32 ? 32 : 64; }

// values: bytes of the values.
inline RowLayout row_layout(size_t dim, size_t values, size_t slots, size_t meta_bytes,
                            size_t meta_alignment) {
  RowLayout row{};
  row.values = values;
  row.slots_at = round_up(row.values, sizeof(float));
  row.meta_at = round_up(row.slots_at + slots * dim * sizeof(float), meta_alignment);
  row.stride = round_up(row.meta_at + meta_bytes, row_alignment(row.values));
  return row;
}

// With a constant size, memcpy becomes a few instructions instead of a call.
inline void copy_row(char* to, const char* from, size_t bytes) {
  switch (bytes) {
    case 2: std::memcpy(to, from, 2); break;
    case 4: std::memcpy(to, from, 4); break;
    case 16: std::memcpy(to, from, 16); break;
    case 32: std::memcpy(to, from, 32); break;
    case 64: std::memcpy(to, from, 64); break;
    default: std::memcpy(to, from, bytes);
  }
}

}  // namespace edl
