// Where the values of a row lie in memory, and how they are moved.
#pragma once

#include <cstddef>
#include <cstring>

namespace edl {

inline void prefetch_range(const char* start, size_t bytes) {
  for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(start + at, 1);
}

inline size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// No value of up to 32 bytes, and the start of no larger one, lies across two cache lines: measured
// on 1M rows of dim 16, a pull is a third faster for it.
inline size_t row_alignment(size_t dim) { return dim * sizeof(float) <= 32 ? 32 : 64; }

// memcpy of a size known to the compiler is a few instructions rather than a call.
inline void copy_row(char* to, const char* from, size_t dim) {
  switch (dim) {
    case 1: std::memcpy(to, from, sizeof(float)); break;
    case 8: std::memcpy(to, from, 8 * sizeof(float)); break;
    case 16: std::memcpy(to, from, 16 * sizeof(float)); break;
    default: std::memcpy(to, from, dim * sizeof(float));
  }
}

}  // namespace edl
