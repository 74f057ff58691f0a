#include "optimizer.h"

#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>

#include "hash.h"

namespace edl {
namespace {

using Hyper = std::map<std::string, double>;

// Hyperparameters and their defaults, as in torch.optim (ftrl: as in TensorFlow; keras_*: as in
// Keras, which adds eps at another place).
const std::map<std::string, Hyper>& defaults() {
  static const std::map<std::string, Hyper> all = {
      {"sgd",
       {{"lr", 1e-3}, {"momentum", 0}, {"dampening", 0}, {"weight_decay", 0}, {"nesterov", 0},
        {"maximize", 0}}},
      {"adagrad",
       {{"lr", 1e-2}, {"lr_decay", 0}, {"weight_decay", 0}, {"initial_accumulator_value", 0},
        {"eps", 1e-10}, {"maximize", 0}}},
      {"adam",
       {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 0},
        {"amsgrad", 0}, {"maximize", 0}}},
      {"sparse_adam",
       {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"maximize", 0}}},
      {"adamw",
       {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}, {"weight_decay", 1e-2},
        {"amsgrad", 0}, {"maximize", 0}}},
      {"rmsprop",
       {{"lr", 1e-2}, {"alpha", 0.99}, {"eps", 1e-8}, {"weight_decay", 0}, {"momentum", 0},
        {"centered", 0}, {"maximize", 0}}},
      {"keras_adam",
       {{"lr", 1e-3}, {"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-7}, {"weight_decay", 0},
        {"amsgrad", 0}}},
      {"keras_rmsprop",
       {{"lr", 1e-3}, {"alpha", 0.9}, {"eps", 1e-7}, {"momentum", 0}, {"centered", 0}}},
      {"ftrl",
       {{"lr", 1e-3}, {"lr_power", -0.5}, {"initial_accumulator_value", 0.1}, {"l1", 0}, {"l2", 0},
        {"beta", 0}, {"maximize", 0}}},
  };
  return all;
}

// Ranges [low, high] that torch.optim accepts; other hyperparameters may be any finite number.
const std::map<std::string, std::pair<double, double>>& ranges() {
  constexpr double kMost = std::numeric_limits<float>::max();
  static const double kBelowOne = std::nextafter(1.0, 0.0);
  static const std::map<std::string, std::pair<double, double>> all = {
      {"momentum", {0, kMost}}, {"weight_decay", {0, kMost}}, {"eps", {0, kMost}},
      {"lr_decay", {0, kMost}}, {"initial_accumulator_value", {0, kMost}},
      {"beta1", {0, kBelowOne}}, {"beta2", {0, kBelowOne}}, {"alpha", {0, 1}},
      {"l1", {0, kMost}}, {"l2", {0, kMost}}, {"beta", {0, kMost}}, {"lr_power", {-kMost, 0}},
  };
  return all;
}

bool is_adam(const std::string& kind) {
  return kind == "adam" || kind == "adamw" || kind == "sparse_adam" || kind == "keras_adam";
}

bool is_rmsprop(const std::string& kind) { return kind == "rmsprop" || kind == "keras_rmsprop"; }

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

std::string names(const Hyper& hyper) {
  std::string out;
  for (const auto& entry : hyper) out += (out.empty() ? "" : ", ") + entry.first;
  return out;
}

}  // namespace

Optimizer::Optimizer(const std::string& kind, const Hyper& hyper) : kind_(kind) {
  auto found = defaults().find(kind);
  if (found == defaults().end()) {
    throw std::invalid_argument("optimizer " + kind +
                                ": unknown; choose sgd, adagrad, adam, adamw, sparse_adam, rmsprop, keras_adam, keras_rmsprop or ftrl");
  }
  hyper_ = found->second;
  for (const auto& entry : hyper) {
    auto known = hyper_.find(entry.first);
    if (known == hyper_.end()) {
      throw std::invalid_argument("optimizer " + kind + ": it has no hyperparameter '" +
                                  entry.first + "'; it knows " + names(found->second));
    }
    if (!std::isfinite(static_cast<float>(entry.second))) {
      throw std::invalid_argument("optimizer " + kind + ": hyperparameter '" + entry.first +
                                  "' is not finite; give a finite number");
    }
    auto range = ranges().find(entry.first);
    if (range != ranges().end() && !(entry.second >= range->second.first &&
                                     entry.second <= range->second.second)) {
      throw std::invalid_argument("optimizer " + kind + ": hyperparameter '" + entry.first + "' is " +
                                  number(entry.second) + "; give one that torch.optim takes");
    }
    known->second = entry.second;
  }
  auto slot = [this](const char* name, double initial) {
    slots_.emplace_back(name);
    slot_initial_.push_back(static_cast<float>(initial));
  };
  auto on = [this](const char* name) { return hyper_.count(name) && hyper_.at(name) != 0; };
  if (kind == "sgd") {
    kernel_ = on("momentum") ? Kernel::kSgdMomentum : Kernel::kSgd;
    if (on("momentum")) slot("momentum_buffer", 0);
  } else if (kind == "adagrad") {
    kernel_ = Kernel::kAdagrad;
    slot("sum", hyper_.at("initial_accumulator_value"));
  } else if (is_adam(kind)) {
    kernel_ = on("amsgrad") ? Kernel::kAmsgrad : Kernel::kAdam;
    slot("exp_avg", 0);
    slot("exp_avg_sq", 0);
    if (on("amsgrad")) slot("max_exp_avg_sq", 0);
  } else if (is_rmsprop(kind)) {
    const bool centered = on("centered"), momentum = hyper_.at("momentum") > 0;
    kernel_ = centered ? (momentum ? Kernel::kRmspropCenteredMomentum : Kernel::kRmspropCentered)
                       : (momentum ? Kernel::kRmspropMomentum : Kernel::kRmsprop);
    slot("square_avg", 0);
    if (centered) slot("grad_avg", 0);
    if (momentum) slot("momentum_buffer", 0);
  } else {
    kernel_ = Kernel::kFtrl;
    slot("accumulator", hyper_.at("initial_accumulator_value"));
    slot("linear", 0);
  }
}

Scalars Optimizer::scalars(double lr, int64_t step) const {
  auto h = [this](const char* name) { return hyper_.at(name); };
  Scalars s;
  if (hyper_.count("maximize") && h("maximize") != 0) s.sign = -1.0f;
  s.lr = static_cast<float>(lr);
  if (hyper_.count("weight_decay")) s.weight_decay = static_cast<float>(h("weight_decay"));
  if (kind_ == "sgd") {
    s.momentum = static_cast<float>(h("momentum"));
    s.one_minus_dampening = static_cast<float>(1 - h("dampening"));
    s.nesterov = static_cast<float>(h("nesterov"));
  } else if (kind_ == "adagrad") {
    s.lr = static_cast<float>(lr / (1 + static_cast<double>(step - 1) * h("lr_decay")));
    s.eps = static_cast<float>(h("eps"));
  } else if (is_adam(kind_)) {
    const double t = static_cast<double>(step);
    const double sqrt_bias2 = std::sqrt(1 - std::pow(h("beta2"), t));
    s.lr = static_cast<float>(lr / (1 - std::pow(h("beta1"), t)));
    s.one_minus_beta1 = static_cast<float>(1 - h("beta1"));
    s.beta2 = static_cast<float>(h("beta2"));
    s.one_minus_beta2 = static_cast<float>(1 - h("beta2"));
    s.inv_sqrt_bias2 = static_cast<float>(1 / sqrt_bias2);
    // SparseAdam and Keras add eps before the bias correction, Adam after it.
    const bool before = kind_ == "sparse_adam" || kind_ == "keras_adam";
    s.eps = static_cast<float>(before ? h("eps") / sqrt_bias2 : h("eps"));
    if (kind_ == "adamw" || kind_ == "keras_adam") {
      s.decay = static_cast<float>(1 - lr * h("weight_decay"));
      s.weight_decay = 0;
    }
  } else if (is_rmsprop(kind_)) {
    s.beta2 = static_cast<float>(h("alpha"));
    s.one_minus_beta2 = static_cast<float>(1 - h("alpha"));
    (kind_ == "rmsprop" ? s.eps : s.inner_eps) = static_cast<float>(h("eps"));
    s.momentum = static_cast<float>(h("momentum"));
  } else {
    s.l1 = static_cast<float>(h("l1"));
    s.two_l2 = static_cast<float>(2 * h("l2") + h("beta") / lr);
    s.inv_lr = static_cast<float>(1 / lr);
    s.power = static_cast<float>(-h("lr_power"));
  }
  return s;
}

namespace {

// Calls body(span, dim) for each span. Common dimensions are compile-time constants, so that the
// loop over a row becomes a few vector instructions.
template <typename Body>
EDL_INLINE void each(const Span* spans, size_t n, size_t dim, Body body) {
  switch (dim) {
    case 1: for (size_t i = 0; i < n; ++i) body(spans[i], 1); break;
    case 8: for (size_t i = 0; i < n; ++i) body(spans[i], 8); break;
    case 16: for (size_t i = 0; i < n; ++i) body(spans[i], 16); break;
    case 32: for (size_t i = 0; i < n; ++i) body(spans[i], 32); break;
    case 64: for (size_t i = 0; i < n; ++i) body(spans[i], 64); break;
    default: for (size_t i = 0; i < n; ++i) body(spans[i], dim);
  }
}

#define EDL_BODY [&](const Span& x, size_t dim) __attribute__((always_inline))
#define EDL_ROW(i) \
  float* __restrict w = x.value; \
  const float* __restrict g = x.grad; \
  for (size_t i = 0; i < dim; ++i)
// The gradient of element i with its sign and L2 penalty.
#define EDL_GRAD(i) (s.sign * g[i] + s.weight_decay * w[i])

// Moves `from` towards `to` by the fraction `weight` of their distance. For weights of 0.5 and
// more, the formula is that of torch's lerp, since from + (to - from) would lose low digits of
// `to`.
EDL_INLINE float toward(float from, float to, float weight) {
  return weight < 0.5f ? from + (to - from) * weight : to - (to - from) * (1 - weight);
}

EDL_CLONES void sgd(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY { EDL_ROW(i) w[i] -= s.lr * EDL_GRAD(i); });
}

EDL_CLONES void sgd_momentum(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict buffer = x.slots[0];
    const float keep = x.first ? 0.0f : s.momentum;
    const float take = x.first ? 1.0f : s.one_minus_dampening;
    const float direct = s.nesterov != 0 ? 1.0f : 0.0f;
    const float through = s.nesterov != 0 ? s.momentum : 1.0f;
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      buffer[i] = keep * buffer[i] + take * d;
      w[i] -= s.lr * (direct * d + through * buffer[i]);
    }
  });
}

EDL_CLONES void adagrad(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict sum = x.slots[0];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      sum[i] += d * d;
      w[i] -= s.lr * d / (std::sqrt(sum[i]) + s.eps);
    }
  });
}

EDL_CLONES void adam(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict m = x.slots[0];
    float* __restrict v = x.slots[1];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      m[i] = toward(m[i], d, s.one_minus_beta1);
      v[i] = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
      w[i] = s.decay * w[i] - s.lr * m[i] / (std::sqrt(v[i]) * s.inv_sqrt_bias2 + s.eps);
    }
  });
}

EDL_CLONES void amsgrad(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict m = x.slots[0];
    float* __restrict v = x.slots[1];
    float* __restrict top = x.slots[2];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      m[i] = toward(m[i], d, s.one_minus_beta1);
      v[i] = s.beta2 * v[i] + s.one_minus_beta2 * d * d;
      top[i] = top[i] > v[i] ? top[i] : v[i];
      w[i] = s.decay * w[i] - s.lr * m[i] / (std::sqrt(top[i]) * s.inv_sqrt_bias2 + s.eps);
    }
  });
}

EDL_CLONES void rmsprop(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict square = x.slots[0];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      square[i] = s.beta2 * square[i] + s.one_minus_beta2 * d * d;
      w[i] -= s.lr * d / (std::sqrt(square[i] + s.inner_eps) + s.eps);
    }
  });
}

EDL_CLONES void rmsprop_momentum(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict square = x.slots[0];
    float* __restrict buffer = x.slots[1];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      square[i] = s.beta2 * square[i] + s.one_minus_beta2 * d * d;
      buffer[i] = s.momentum * buffer[i] + d / (std::sqrt(square[i] + s.inner_eps) + s.eps);
      w[i] -= s.lr * buffer[i];
    }
  });
}

// Rounding may make the variance slightly negative; torch's square root would then be NaN.
EDL_INLINE float deviation(float square, float mean, float inner_eps) {
  const float variance = square - mean * mean;
  return std::sqrt((variance > 0 ? variance : 0.0f) + inner_eps);
}

EDL_CLONES void rmsprop_centered(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict square = x.slots[0];
    float* __restrict mean = x.slots[1];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      square[i] = s.beta2 * square[i] + s.one_minus_beta2 * d * d;
      mean[i] = toward(mean[i], d, s.one_minus_beta2);
      w[i] -= s.lr * d / (deviation(square[i], mean[i], s.inner_eps) + s.eps);
    }
  });
}

EDL_CLONES void rmsprop_centered_momentum(const Scalars& s, const Span* spans, size_t n,
                                          size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict square = x.slots[0];
    float* __restrict mean = x.slots[1];
    float* __restrict buffer = x.slots[2];
    EDL_ROW(i) {
      const float d = EDL_GRAD(i);
      square[i] = s.beta2 * square[i] + s.one_minus_beta2 * d * d;
      mean[i] = toward(mean[i], d, s.one_minus_beta2);
      buffer[i] = s.momentum * buffer[i] + d / (deviation(square[i], mean[i], s.inner_eps) + s.eps);
      w[i] -= s.lr * buffer[i];
    }
  });
}

// FTRL-Proximal (McMahan et al. 2013, algorithm 1) in TensorFlow's form: accumulator = sum of
// squares, rate = lr * accumulator ** lr_power. `change` is the increase of the accumulator's root,
// passed as a parameter because late in training float32 could not represent the difference.
EDL_INLINE void ftrl_element(const Scalars& s, float d, float root, float change, float* w,
                             float* linear) {
  const float z = *linear + d - change * s.inv_lr * *w;
  const float clipped = z > s.l1 ? s.l1 : (z < -s.l1 ? -s.l1 : z);
  *linear = z;
  *w = (clipped - z) / (root * s.inv_lr + s.two_l2);
}

EDL_CLONES void ftrl(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict accumulator = x.slots[0];
    float* __restrict linear = x.slots[1];
    EDL_ROW(i) {
      const float d = s.sign * g[i], before = accumulator[i], after = before + d * d;
      const float root = std::sqrt(after), sum = root + std::sqrt(before);
      accumulator[i] = after;
      ftrl_element(s, d, root, sum > 0 ? d * d / sum : 0.0f, w + i, linear + i);
    }
  });
}

void ftrl_power(const Scalars& s, const Span* spans, size_t n, size_t dim) {
  each(spans, n, dim, EDL_BODY {
    float* __restrict accumulator = x.slots[0];
    float* __restrict linear = x.slots[1];
    EDL_ROW(i) {
      const float d = s.sign * g[i];
      const double before = accumulator[i], after = before + static_cast<double>(d) * d;
      const double root = std::pow(after, s.power), change = root - std::pow(before, s.power);
      accumulator[i] = static_cast<float>(after);
      ftrl_element(s, d, static_cast<float>(root), static_cast<float>(change), w + i, linear + i);
    }
  });
}

}  // namespace

void Optimizer::apply(const Scalars& s, const Span* spans, size_t n, size_t dim) const {
  switch (kernel_) {
    case Kernel::kSgd: return sgd(s, spans, n, dim);
    case Kernel::kSgdMomentum: return sgd_momentum(s, spans, n, dim);
    case Kernel::kAdagrad: return adagrad(s, spans, n, dim);
    case Kernel::kAdam: return adam(s, spans, n, dim);
    case Kernel::kAmsgrad: return amsgrad(s, spans, n, dim);
    case Kernel::kRmsprop: return rmsprop(s, spans, n, dim);
    case Kernel::kRmspropMomentum: return rmsprop_momentum(s, spans, n, dim);
    case Kernel::kRmspropCentered: return rmsprop_centered(s, spans, n, dim);
    case Kernel::kRmspropCenteredMomentum: return rmsprop_centered_momentum(s, spans, n, dim);
    case Kernel::kFtrl:
      // A warm-up may start with a rate of 0: no value changes, and division by lr is impossible.
      if (!std::isfinite(s.inv_lr) || s.inv_lr <= 0) return;
      return s.power == 0.5f ? ftrl(s, spans, n, dim) : ftrl_power(s, spans, n, dim);
  }
}

}  // namespace edl
