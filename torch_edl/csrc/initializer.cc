#include "initializer.h"

#include <cmath>
#include <set>
#include <stdexcept>

#include "hash.h"

namespace edl {
namespace {

uint64_t key_of(const std::string& table, int64_t seed) {
  uint64_t key = mix64(static_cast<uint64_t>(seed));
  for (unsigned char c : table) key = mix64(key ^ c);
  return key;
}

double take(const std::map<std::string, double>& args, const char* name, double otherwise) {
  auto found = args.find(name);
  return found == args.end() ? otherwise : found->second;
}

// Converts 24 bits to [0, 1); every value is exact in float32.
inline float unit(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }

}  // namespace

Initializer::Initializer(const std::string& table, int64_t seed, const std::string& kind,
                         const std::map<std::string, double>& args, size_t dim)
    : shape_(Shape::kConstant), dim_(dim), key_(key_of(table, seed)), a_(0), b_(0) {
  std::set<std::string> known;
  if (kind == "zeros") {
  } else if (kind == "constant") {
    known = {"value"};
    a_ = static_cast<float>(take(args, "value", 0.0));
  } else if (kind == "uniform") {
    known = {"low", "high"};
    const double low = take(args, "low", -0.05), high = take(args, "high", 0.05);
    shape_ = Shape::kUniform;
    a_ = static_cast<float>(low);
    b_ = static_cast<float>(high - low);
  } else if (kind == "normal") {
    known = {"mean", "std"};
    shape_ = Shape::kNormal;
    a_ = static_cast<float>(take(args, "mean", 0.0));
    b_ = static_cast<float>(take(args, "std", 0.05));
  } else {
    throw std::invalid_argument("initializer " + kind +
                                ": unknown; choose zeros, constant, uniform or normal");
  }
  for (const auto& arg : args) {
    if (!known.count(arg.first)) {
      throw std::invalid_argument("initializer " + kind + ": it has no argument '" + arg.first +
                                  "'; leave it out");
    }
    if (!std::isfinite(arg.second)) {
      throw std::invalid_argument("initializer " + kind + ": argument '" + arg.first +
                                  "' is not finite; give a finite number");
    }
  }
  // Check the range of all rows: normal numbers made from 24 bits are below 6 deviations.
  if (!std::isfinite(a_ + 6 * b_) || !std::isfinite(a_ - 6 * b_)) {
    throw std::invalid_argument("initializer " + kind + ": its numbers are beyond float32; give "
                                "smaller ones");
  }
}

void Initializer::fill(int64_t id, float* out) const {
  if (shape_ == Shape::kConstant) {
    for (size_t i = 0; i < dim_; ++i) out[i] = a_;
    return;
  }
  const uint64_t key = mix64(key_ ^ mix64(static_cast<uint64_t>(id)));
  for (size_t i = 0; i < dim_; i += 2) {
    const uint64_t bits = mix64(key + i);
    const float u = unit(static_cast<uint32_t>(bits)), v = unit(static_cast<uint32_t>(bits >> 32));
    float x, y;
    if (shape_ == Shape::kUniform) {
      x = a_ + b_ * u;
      y = a_ + b_ * v;
    } else {  // Box-Muller; 1 - u is in (0, 1]
      const float radius = std::sqrt(-2.0f * std::log(1.0f - u));
      const float angle = 6.283185307179586f * v;
      x = a_ + b_ * radius * std::cos(angle);
      y = a_ + b_ * radius * std::sin(angle);
    }
    out[i] = x;
    if (i + 1 < dim_) out[i + 1] = y;
  }
}

}  // namespace edl
