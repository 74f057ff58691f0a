#include "exact_sum.h"

#include <algorithm>
#include <cstring>

namespace edl {
namespace {

constexpr size_t kBetweenCarries = size_t{1} << 28;

}  // namespace

template <typename Float>
Sums exact_sums(const Float* values, size_t n) {
  // 2046 + 53 bits of a double and 32 bits of the count; twice as many for squares.
  LongSum<70> sum;
  LongSum<138> squares;
  Sums result;
  for (size_t first = 0; first < n; first += kBetweenCarries) {
    const size_t end = std::min(n, first + kBetweenCarries);
    for (size_t i = first; i < end; ++i) {
      const double value = values[i];
      uint64_t bits;
      std::memcpy(&bits, &value, 8);
      const auto exponent = static_cast<size_t>(bits >> 52 & 0x7ff);
      uint64_t mantissa = bits & ((uint64_t{1} << 52) - 1);
      if (exponent == 0x7ff) {
        result.infinite += mantissa == 0;
        continue;
      }
      ++result.count;
      if (exponent) mantissa |= uint64_t{1} << 52;
      const size_t bit = exponent ? exponent - 1 : 0;
      sum.add(mantissa, bit, bits >> 63 ? -1 : 1);
      const auto square = static_cast<unsigned __int128>(mantissa) * mantissa;
      squares.add(static_cast<uint64_t>(square), 2 * bit, 1);
      squares.add(static_cast<uint64_t>(square >> 64), 2 * bit + 64, 1);
    }
    sum.carry();
    squares.carry();
  }
  result.sum = sum.bytes();
  result.squares = squares.bytes();
  return result;
}

template Sums exact_sums<float>(const float*, size_t);
template Sums exact_sums<double>(const double*, size_t);

}  // namespace edl
