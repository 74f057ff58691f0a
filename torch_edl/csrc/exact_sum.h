// Sums of floating-point numbers without rounding, independent of the order of the numbers.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace edl {

// A fixed-point number of `kWords` 32-bit digits. Each digit has 64 bits, so that 2^31 additions
// need no carry (Neal, "Fast exact summation using small and large superaccumulators", 2015).
template <size_t kWords>
class LongSum {
 public:
  // Adds (or subtracts) word * 2^bit.
  void add(uint64_t word, size_t bit, int64_t sign) {
    const auto spread = static_cast<unsigned __int128>(word) << (bit & 31);
    int64_t* digit = digits_.data() + (bit >> 5);
    digit[0] += sign * static_cast<int64_t>(static_cast<uint32_t>(spread));
    digit[1] += sign * static_cast<int64_t>(static_cast<uint32_t>(spread >> 32));
    digit[2] += sign * static_cast<int64_t>(static_cast<uint32_t>(spread >> 64));
  }

  // Carries the excess of each digit to the next digit.
  void carry() {
    for (size_t i = 0; i + 1 < kWords; ++i) {
      digits_[i + 1] += digits_[i] >> 32;
      digits_[i] &= 0xffffffff;
    }
  }

  // Returns the number as a little-endian integer in two's complement.
  std::string bytes() {
    carry();
    std::string out;
    for (const int64_t digit : digits_) {
      for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(digit >> shift));
    }
    return out;
  }

 private:
  std::array<int64_t, kWords> digits_{};
};

struct Sums {
  int64_t count = 0;     // number of finite values
  int64_t infinite = 0;  // number of infinities, which are in no sum; NaN is not counted
  std::string sum;       // sum times 2^1074, as in `LongSum::bytes`
  std::string squares;   // sum of squares times 2^2148
};

// Returns the exact sum of the values and of their squares.
template <typename Float>
Sums exact_sums(const Float* values, size_t n);

}  // namespace edl
