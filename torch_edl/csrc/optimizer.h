// The optimizers. One kernel updates rows and dense parameters: a dense parameter is one long row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace edl {

constexpr size_t kMaxSlots = 3;

// One row to update: values, gradient and slots, all of the same length.
struct Span {
  float* value;
  const float* grad;
  float* slots[kMaxSlots];
  bool first;  // first update of the row (SGD: the first gradient is not dampened)
};

// Constants of one update, computed once per batch in double precision.
struct Scalars {
  float lr = 0, sign = 1, weight_decay = 0, eps = 0, inner_eps = 0, decay = 1;
  float momentum = 0, one_minus_dampening = 1, nesterov = 0;
  float beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0, inv_sqrt_bias2 = 1;
  float l1 = 0, two_l2 = 0, inv_lr = 0, power = 0.5f;
};

class Optimizer {
 public:
  // kind: sgd, adagrad, adam, adamw, sparse_adam, rmsprop, keras_adam, keras_rmsprop or ftrl.
  // hyper: hyperparameters with torch's names, booleans as 0 or 1; missing ones have torch's
  // defaults. Throws std::invalid_argument with the unknown name.
  Optimizer(const std::string& kind, const std::map<std::string, double>& hyper);

  const std::string& kind() const { return kind_; }
  const std::map<std::string, double>& hyper() const { return hyper_; }
  const std::vector<std::string>& slots() const { return slots_; }
  // Initial value of each slot.
  const std::vector<float>& slot_initial() const { return slot_initial_; }

  // step: number of the update, from 1; for rows, the number of the table's update.
  Scalars scalars(double lr, int64_t step) const;

  // Updates n spans of `dim` floats each.
  void apply(const Scalars& scalars, const Span* spans, size_t n, size_t dim) const;

 private:
  enum class Kernel { kSgd, kSgdMomentum, kAdagrad, kAdam, kAmsgrad, kRmsprop, kRmspropMomentum,
                      kRmspropCentered, kRmspropCenteredMomentum, kFtrl };
  std::string kind_;
  std::map<std::string, double> hyper_;
  std::vector<std::string> slots_;
  std::vector<float> slot_initial_;
  Kernel kernel_ = Kernel::kSgd;
};

}  // namespace edl
