#include "numerics.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "hash.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace edl {
namespace {

// An exponent of all ones means NaN or infinity. Integer arithmetic is vectorized; isfinite is not.
EDL_CLONES uint32_t any_nonfinite(const float* values, size_t n) {
  uint32_t found = 0;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof bits);
    found |= static_cast<uint32_t>((bits & 0x7f800000u) == 0x7f800000u);
  }
  return found;
}

// A 32-bit hash in which every output bit depends on every input bit (Wellons, lowbias32).
EDL_INLINE uint32_t scrambled(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

EDL_INLINE float power_of_two(int32_t exponent) {
  const int32_t bits = (exponent + 127) << 23;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// The unit of a row in 8 bits.
struct Unit {
  int32_t exponent;
  float inverse;
  int32_t least;  // bits of the smallest float that is not taken for zero: no denormal number, nor
                  // less than 2^-24 units
};

EDL_INLINE Unit unit_of(const float* from, size_t n) {
  int32_t largest = 0;  // bits of the largest finite size
  for (size_t i = 0; i < n; ++i) {
    int32_t size;
    std::memcpy(&size, from + i, sizeof size);
    size &= 0x7fffffff;
    size = size < 0x7f800000 ? size : 0;
    largest = size > largest ? size : largest;
  }
  // Above 127 units, the unit is doubled. Units from 2^-126 to 2^121 keep all products normal.
  const int32_t exponent = std::clamp(((largest + 0x1ffff) >> 23) - 133, -126, 121);
  return {exponent, power_of_two(-exponent), std::max(exponent + 103, 1) << 23};
}

// The code of a size in units, with the sign of the value.
EDL_INLINE int8_t code_of(int32_t units, int32_t bits) {
  units = units > 127 ? 127 : units;  // rounded up from above 127 units of 2^121
  units = bits < 0 ? -units : units;
  return static_cast<int8_t>((bits & 0x7fffffff) >= 0x7f800000 ? -128 : units);
}

}  // namespace

EDL_CLONES void to_bfloat16(const float* from, uint16_t* to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const uint32_t nan = (bits >> 16) | 0x40u;  // rounding could turn NaN into infinity or zero
    to[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
  }
}

EDL_CLONES void from_bfloat16(const uint16_t* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// For values below the smallest normal half, adding 0.5 shifts the bits of the half to the lowest
// bits of the float, and rounds them.
EDL_CLONES void to_half(const float* from, uint16_t* to, size_t n) {
  constexpr uint32_t kInfinity = 0x7f800000u, kTooLarge = 0x477ff000u, kSmallest = 0x38800000u;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu;
    float shifted;
    std::memcpy(&shifted, &size, sizeof shifted);
    shifted += 0.5f;
    uint32_t small;
    std::memcpy(&small, &shifted, sizeof small);
    uint32_t half = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    half = size < kSmallest ? small - 0x3f000000u : half;
    half = size >= kTooLarge ? 0x7bffu : half;
    half = size >= kInfinity ? 0x7c00u : half;
    half = size > kInfinity ? 0x7e00u : half;
    to[i] = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
  }
}

EDL_CLONES void from_half(const uint16_t* from, float* to, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t half = from[i], size = (half & 0x7fffu) << 13;
    // A subnormal half is a multiple of 2^-24.
    const float small = static_cast<float>(static_cast<int32_t>(half & 0x3ffu)) * 0x1p-24f;
    uint32_t bits = size + 0x38000000u, small_bits;
    std::memcpy(&small_bits, &small, sizeof small_bits);
    bits = size >= 0x0f800000u ? size + 0x70000000u : bits;  // infinity and NaN
    bits = size < 0x00800000u ? small_bits : bits;
    bits |= (half & 0x8000u) << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

EDL_CLONES void to_bfloat16_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key) {
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu;
    const uint32_t chance = scrambled(key + static_cast<uint32_t>(i) * 0x9e3779b9u) >> 16;
    uint32_t rounded = (size + chance) >> 16;
    rounded = rounded >= 0x7f80u ? 0x7f7fu : rounded;
    const uint32_t special = (size >> 16) | (size > 0x7f800000u ? 0x40u : 0u);
    rounded = size >= 0x7f800000u ? special : rounded;
    to[i] = static_cast<uint16_t>(rounded | ((bits >> 16) & 0x8000u));
  }
}

// A value below the smallest normal half is rounded to a whole number of steps of 2^-24; this
// number equals the bits of the half.
EDL_CLONES void to_half_by_chance(const float* from, uint16_t* to, size_t n, uint32_t key) {
  constexpr uint32_t kInfinity = 0x7f800000u, kSmallest = 0x38800000u;
  for (size_t i = 0; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    const uint32_t size = bits & 0x7fffffffu;
    const uint32_t chance = scrambled(key + static_cast<uint32_t>(i) * 0x9e3779b9u);
    float value;
    std::memcpy(&value, &size, sizeof value);
    value = size < kSmallest ? value : 0.0f;
    value *= 0x1p24f;
    const auto below = static_cast<int32_t>(value);
    const float part = static_cast<float>(static_cast<int32_t>(chance >> 8)) * 0x1p-24f;
    const bool up = part < value - static_cast<float>(below);
    const uint32_t small = static_cast<uint32_t>(below) + up;
    uint32_t half = (size - 0x38000000u + (chance >> 19)) >> 13;
    half = size < kSmallest ? small : half;
    half = size >= 0x477fe000u ? 0x7bffu : half;  // values from the largest half upwards
    half = size >= kInfinity ? 0x7c00u : half;
    half = size > kInfinity ? 0x7e00u : half;
    to[i] = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
  }
}

// Adding 2^23 rounds the units, and shifts them to the lowest bits of the float.
EDL_CLONES void to_int8(const float* from, int8_t* to, size_t n) {
  const Unit unit = unit_of(from, n);
  for (size_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    int32_t size = bits & 0x7fffffff;
    size = size < unit.least ? 0 : size;
    float value;
    std::memcpy(&value, &size, sizeof value);
    value = value * unit.inverse + 0x1p23f;
    int32_t units;
    std::memcpy(&units, &value, sizeof units);
    to[i] = code_of(units - 0x4b000000, bits);
  }
  to[n] = static_cast<int8_t>(unit.exponent);
}

EDL_CLONES void to_int8_by_chance(const float* from, int8_t* to, size_t n, uint32_t key) {
  const Unit unit = unit_of(from, n);
  for (size_t i = 0; i < n; ++i) {
    int32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    int32_t size = bits & 0x7fffffff;
    size = size < unit.least || size >= 0x7f800000 ? 0 : size;
    float value;
    std::memcpy(&value, &size, sizeof value);
    value *= unit.inverse;
    const uint32_t chance = scrambled(key + static_cast<uint32_t>(i) * 0x9e3779b9u);
    const float part = static_cast<float>(static_cast<int32_t>(chance >> 8)) * 0x1p-24f;
    const auto below = static_cast<int32_t>(value);
    const bool up = part < value - static_cast<float>(below);
    to[i] = code_of(below + up, bits);
  }
  to[n] = static_cast<int8_t>(unit.exponent);
}

EDL_CLONES void from_int8(const int8_t* from, float* to, size_t n) {
  const float unit = power_of_two(from[n]);
  for (size_t i = 0; i < n; ++i) {
    const float value = static_cast<float>(from[i]) * unit;
    to[i] = from[i] == -128 ? std::numeric_limits<float>::quiet_NaN() : value;
  }
}

Dtype dtype_of(const std::string& name) {
  if (name == "fp32") return Dtype::kFloat;
  if (name == "bf16") return Dtype::kBfloat16;
  if (name == "fp16") return Dtype::kHalf;
  if (name == "int8") return Dtype::kInt8;
  throw std::invalid_argument("dtype " + name + ": expected fp32, bf16, fp16 or int8");
}

Dtype wire_dtype_of(const std::string& name) {
  const Dtype dtype = dtype_of(name);
  if (dtype != Dtype::kInt8) return dtype;
  throw std::invalid_argument("dtype int8: only for rows in a table; send fp32, bf16 or fp16");
}

void narrow(Dtype dtype, const float* from, char* to, size_t n) {
  auto* out = reinterpret_cast<uint16_t*>(to);
  switch (dtype) {
    case Dtype::kFloat: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::kBfloat16: return to_bfloat16(from, out, n);
    case Dtype::kHalf: return to_half(from, out, n);
    case Dtype::kInt8: return to_int8(from, reinterpret_cast<int8_t*>(to), n);
  }
}

void narrow_by_chance(Dtype dtype, const float* from, char* to, size_t n, uint32_t key) {
  auto* out = reinterpret_cast<uint16_t*>(to);
  switch (dtype) {
    case Dtype::kFloat: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::kBfloat16: return to_bfloat16_by_chance(from, out, n, key);
    case Dtype::kHalf: return to_half_by_chance(from, out, n, key);
    case Dtype::kInt8: return to_int8_by_chance(from, reinterpret_cast<int8_t*>(to), n, key);
  }
}

void widen(Dtype dtype, const char* from, float* to, size_t n) {
  const auto* in = reinterpret_cast<const uint16_t*>(from);
  switch (dtype) {
    case Dtype::kFloat: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::kBfloat16: return from_bfloat16(in, to, n);
    case Dtype::kHalf: return from_half(in, to, n);
    case Dtype::kInt8: return from_int8(reinterpret_cast<const int8_t*>(from), to, n);
  }
}

int64_t first_nonfinite(const float* values, size_t n) {
  constexpr size_t kBlock = 4096;
  for (size_t start = 0; start < n; start += kBlock) {
    const size_t end = start + kBlock < n ? start + kBlock : n;
    if (!any_nonfinite(values + start, end - start)) continue;
    for (size_t i = start; i < end; ++i) {
      if (!std::isfinite(values[i])) return static_cast<int64_t>(i);
    }
  }
  return -1;
}

#if defined(__x86_64__)
FlushDenormals::FlushDenormals() : saved_(_mm_getcsr()) {
  _mm_setcsr(static_cast<unsigned>(saved_) | 0x8040);  // flush to zero, denormals are zero
}
FlushDenormals::~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#elif defined(__aarch64__)
FlushDenormals::FlushDenormals() {
  __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
  __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | (1ULL << 24)));
}
FlushDenormals::~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#else
FlushDenormals::FlushDenormals() = default;
FlushDenormals::~FlushDenormals() = default;
#endif

}  // namespace edl
