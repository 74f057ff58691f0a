#include "numerics.h"

#include <cmath>
#include <cstring>
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

Dtype dtype_of(const std::string& name) {
  if (name == "fp32") return Dtype::kFloat;
  if (name == "bf16") return Dtype::kBfloat16;
  if (name == "fp16") return Dtype::kHalf;
  throw std::invalid_argument("dtype " + name + ": expected fp32, bf16 or fp16");
}

void narrow(Dtype dtype, const float* from, char* to, size_t n) {
  auto* out = reinterpret_cast<uint16_t*>(to);
  switch (dtype) {
    case Dtype::kFloat: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::kBfloat16: return to_bfloat16(from, out, n);
    case Dtype::kHalf: return to_half(from, out, n);
  }
}

void widen(Dtype dtype, const char* from, float* to, size_t n) {
  const auto* in = reinterpret_cast<const uint16_t*>(from);
  switch (dtype) {
    case Dtype::kFloat: std::memcpy(to, from, n * sizeof(float)); return;
    case Dtype::kBfloat16: return from_bfloat16(in, to, n);
    case Dtype::kHalf: return from_half(in, to, n);
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
