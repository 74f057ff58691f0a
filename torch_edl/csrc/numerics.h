// Floating-point numbers that an update must not meet: NaN, infinity, and denormal ones.
#pragma once

#include <cstddef>
#include <cstdint>

namespace edl {

// Denormal numbers are taken for zero while it lives: they cost a hundred times the time of others,
// and decayed momenta are full of them.
class FlushDenormals {
 public:
  FlushDenormals();
  ~FlushDenormals();
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  uint64_t saved_ = 0;
};

// Index of the first NaN or infinity; -1 if all are finite.
int64_t first_nonfinite(const float* values, size_t n);

// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
void to_bfloat16(const float* from, uint16_t* to, size_t n);

// Exact.
void from_bfloat16(const uint16_t* from, float* to, size_t n);

}  // namespace edl
