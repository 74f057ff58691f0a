// Initial values of a row: a pure function of (seed, table name, id). A row therefore does not
// depend on the order of first use, the number of servers, or an earlier eviction.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace edl {

class Initializer {
 public:
  // kind: zeros, constant(value), uniform(low, high) or normal(mean, std).
  // Throws std::invalid_argument for an unknown kind or argument.
  Initializer(const std::string& table, int64_t seed, const std::string& kind,
              const std::map<std::string, double>& args, size_t dim);

  void fill(int64_t id, float* out) const;

 private:
  enum class Shape { kConstant, kUniform, kNormal };
  Shape shape_;
  size_t dim_;
  uint64_t key_;  // hash of (seed, table)
  float a_;       // constant: the value; uniform: low; normal: mean
  float b_;       // uniform: high - low; normal: standard deviation
};

}  // namespace edl
