// Floating-point conversions, and handling of NaN, infinity and denormal numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace edl {

// Treats denormal numbers as zero during its lifetime. Denormal numbers are a hundred times slower
// than others, and decayed momenta contain many of them.
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

// Exact conversion.
void from_bfloat16(const uint16_t* from, float* to, size_t n);

// Rounds to the nearest half, ties to even; a finite value beyond the range becomes the largest
// half, NaN stays NaN.
void to_half(const float* from, uint16_t* to, size_t n);

// Exact conversion.
void from_half(const uint16_t* from, float* to, size_t n);

// Stochastic rounding: the probability of rounding up makes the mean exact, so that updates smaller
// than a step of the type are not lost. Finite values stay finite. Equal keys give equal results.
void to_bfloat16_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key);
void to_half_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key);

// Type of float values on the wire or in a table.
enum class Dtype { kFloat, kBfloat16, kHalf };

// Parses "fp32", "bf16" or "fp16"; throws std::invalid_argument for other names.
Dtype dtype_of(const std::string& name);

inline size_t size_of(Dtype dtype) { return dtype == Dtype::kFloat ? 4 : 2; }

// Convert from float32 to the type, rounded to nearest, and back. Addresses need no alignment.
void narrow(Dtype dtype, const float* from, char* to, size_t n);
void widen(Dtype dtype, const char* from, float* to, size_t n);

}  // namespace edl
