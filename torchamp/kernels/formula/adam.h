#pragma once
// Adam and AdamW over a lane, in the order of operations of Python's single-tensor loop on a CPU
// with fused multiply-add, so that the bits are the same.

#include <cmath>
#include <cstdint>

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// The numbers of one step, as Python computes them in double; a lane rounds each to its own type.
///
/// Source: PyTorch torch/optim/adam.py, `_single_tensor_adam`; Kingma and Ba 2015, algorithm 1;
///         Loshchilov and Hutter 2019, algorithm 2; Reddi et al. 2018, algorithm 2 (amsgrad).
struct AdamRule {
  bool has_decay = false;
  bool decoupled = true;  ///< AdamW; else the decay enters the gradient
  bool amsgrad = false;
  bool rounds_products = false;  ///< complex parameters: Python rounds weight_decay * p by itself
  double decay = 0.0;            ///< decoupled: 1 - lr * weight_decay; else weight_decay
  double one_minus_beta1 = 0.0;
  double beta2 = 0.0;
  double one_minus_beta2 = 0.0;
  double root_bias_correction2 = 1.0;  ///< sqrt(1 - beta2^t)
  double eps = 0.0;
  double minus_step_size = 0.0;  ///< -lr / (1 - beta1^t)
};

/// From beta1^t and beta2^t, with an IEEE root.
TORCHAMP_KERNEL_FUNCTION AdamRule adam_rule_of_powers(double lr, double beta1, double beta2,
                                                      double eps, double weight_decay,
                                                      bool decoupled, bool amsgrad,
                                                      double beta1_to_t, double beta2_to_t) {
  AdamRule rule;
  rule.has_decay = weight_decay != 0.0;
  rule.decoupled = decoupled;
  rule.amsgrad = amsgrad;
  rule.decay = decoupled ? 1.0 - lr * weight_decay : weight_decay;
  rule.one_minus_beta1 = 1.0 - beta1;
  rule.beta2 = beta2;
  rule.one_minus_beta2 = 1.0 - beta2;
  rule.root_bias_correction2 = ::sqrt(1.0 - beta2_to_t);
  rule.eps = eps;
  rule.minus_step_size = -(lr / (1.0 - beta1_to_t));
  return rule;
}

/// `step` is t, from 1. Powers and root as Python takes them, from the C library.
static inline AdamRule adam_rule(double lr, double beta1, double beta2, double eps,
                                 double weight_decay, bool decoupled, bool amsgrad, int64_t step) {
  const double t = static_cast<double>(step);
  const double beta2_to_t = std::pow(beta2, t);
  AdamRule rule = adam_rule_of_powers(lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad,
                                      std::pow(beta1, t), beta2_to_t);
  rule.root_bias_correction2 = std::pow(1.0 - beta2_to_t, 0.5);
  return rule;
}

/// The rule in a lane's type.
template <typename L>
struct AdamLanes {
  TORCHAMP_LANE_FUNCTION explicit AdamLanes(const AdamRule& rule)
      : decay(L::all(rule.decay)),
        // lerp: a + w (b - a) for small w, b + (w - 1) (b - a) else.
        lerp_weight(L::all(rule.one_minus_beta1)),
        beta2(L::all(rule.beta2)),
        one_minus_beta2(L::all(rule.one_minus_beta2)),
        root_bias_correction2(L::all(rule.root_bias_correction2)),
        eps(L::all(rule.eps)),
        minus_step_size(L::all(rule.minus_step_size)),
        rounds_products(rule.rounds_products),
        from_start(static_cast<typename L::Real>(rule.one_minus_beta1) < 0.5) {
    if (!from_start) lerp_weight = lerp_weight - L::all(1.0);
  }
  L decay, lerp_weight, beta2, one_minus_beta2, root_bias_correction2, eps, minus_step_size;
  bool rounds_products;
  bool from_start;
};

enum class Decay : uint8_t { kNone, kDecoupled, kInGradient };

/// p <- p (1 - lr wd), or g <- g + wd p;  m <- m + (1 - b1) (g - m);  v <- b2 v + (1 - b2) g g;
/// vmax <- max(vmax, v). Returns what is under the root: v or vmax.
template <Decay kDecay, bool kAmsgrad, typename L>
TORCHAMP_LANE_FUNCTION L adam_moments(const AdamLanes<L>& c, L g, L& p, L& m, L& v, L& v_max) {
  if constexpr (kDecay == Decay::kDecoupled) p = p * c.decay;
  if constexpr (kDecay == Decay::kInGradient) {
    g = c.rounds_products ? g + p * c.decay : fma(p, c.decay, g);
  }
  m = fma(c.lerp_weight, g - m, c.from_start ? m : g);
  v = fma(c.one_minus_beta2 * g, g, v * c.beta2);
  if constexpr (kAmsgrad) {
    v_max = max_or_nan(v_max, v);
    return v_max;
  }
  return v;
}

/// p <- p - step_size m / (root / sqrt(1 - b2^t) + eps)
template <typename L>
TORCHAMP_LANE_FUNCTION L adam_apply(const AdamLanes<L>& c, L p, L m, L root) {
  const L denominator = root / c.root_bias_correction2 + c.eps;
  return p + (c.minus_step_size * m) / denominator;
}

}  // namespace torchamp::kernels
