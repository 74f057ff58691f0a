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

// A row in n + 1 bytes: n codes from -127 to 127, and the exponent e of their unit 2^e. The largest
// size is 64 to 127 units, so the values of a row that was widened are stored again without any
// change. NaN and infinity have the code -128, which is NaN, and do not change the other values.
// Denormal numbers become zero. Rounds to the nearest code, ties to even.
void to_int8(const float* from, int8_t* to, size_t n);
void to_int8_by_chance(const float* from, int8_t* to, size_t n, uint32_t key);

// Exact conversion.
void from_int8(const int8_t* from, float* to, size_t n);

// Type of float values in a table, or on the wire, where kInt8 is not used.
enum class Dtype { kFloat, kBfloat16, kHalf, kInt8 };

// Parses "fp32", "bf16", "fp16" or "int8"; throws std::invalid_argument for other names.
Dtype dtype_of(const std::string& name);
// The same for the wire, without "int8".
Dtype wire_dtype_of(const std::string& name);

// Bytes of n values. With kInt8, they are one row.
inline size_t bytes_of(Dtype dtype, size_t n) {
  return dtype == Dtype::kInt8 ? n + 1 : n * (dtype == Dtype::kFloat ? 4 : 2);
}

// Convert from float32 to the type, rounded to nearest or by chance, and back. With kInt8, the n
// values are one row. Addresses need no alignment.
void narrow(Dtype dtype, const float* from, char* to, size_t n);
void narrow_by_chance(Dtype dtype, const float* from, char* to, size_t n, uint32_t key);
void widen(Dtype dtype, const char* from, float* to, size_t n);

}  // namespace edl
