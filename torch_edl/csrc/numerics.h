// Floating-point numbers that an update must not meet: NaN, infinity, and denormal ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

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

// Rounds to the nearest half, ties to even; a finite value beyond the range becomes the largest
// half, NaN stays NaN.
void to_half(const float* from, uint16_t* to, size_t n);

// Exact.
void from_half(const uint16_t* from, float* to, size_t n);

// Rounds up or down with a probability that makes the mean exact, so that updates smaller than a
// step of the type are not lost; a finite value stays finite. Equal keys give equal results.
void to_bfloat16_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key);
void to_half_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key);

// What float values are on the way, or in a table.
enum class Dtype { kFloat, kBfloat16, kHalf };

// Of "fp32", "bf16" and "fp16"; throws std::invalid_argument.
Dtype dtype_of(const std::string& name);

inline size_t size_of(Dtype dtype) { return dtype == Dtype::kFloat ? 4 : 2; }

// From float32 to the type, at any address, rounded to the nearest; and back.
void narrow(Dtype dtype, const float* from, char* to, size_t n);
void widen(Dtype dtype, const char* from, float* to, size_t n);

}  // namespace edl
