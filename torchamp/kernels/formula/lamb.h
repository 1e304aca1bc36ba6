#pragma once
// LAMB over a lane: an Adam direction whose length is set by the norms of weight and direction.

#include <cmath>
#include <cstdint>

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// The numbers of one step, in double; a lane rounds each to its own type.
///
/// Source: You et al. 2020, algorithm 2, with the bias correction of its text.
struct LambRule {
  double one_minus_beta1 = 0.0;
  double beta2 = 0.0;
  double one_minus_beta2 = 0.0;
  double inverse_bias_correction1 = 1.0;  ///< 1 / (1 - beta1^t)
  double root_bias_correction2 = 1.0;     ///< sqrt(1 - beta2^t)
  double eps = 0.0;
  double weight_decay = 0.0;
};

/// From beta1^t and beta2^t.
TORCHAMP_KERNEL_FUNCTION LambRule lamb_rule_of_powers(double beta1, double beta2, double eps,
                                                      double weight_decay, double beta1_to_t,
                                                      double beta2_to_t) {
  LambRule rule;
  rule.one_minus_beta1 = 1.0 - beta1;
  rule.beta2 = beta2;
  rule.one_minus_beta2 = 1.0 - beta2;
  rule.inverse_bias_correction1 = 1.0 / (1.0 - beta1_to_t);
  rule.root_bias_correction2 = ::sqrt(1.0 - beta2_to_t);
  rule.eps = eps;
  rule.weight_decay = weight_decay;
  return rule;
}

/// `step` is t, from 1.
static inline LambRule lamb_rule(double beta1, double beta2, double eps, double weight_decay,
                                 int64_t step) {
  const double t = static_cast<double>(step);
  return lamb_rule_of_powers(beta1, beta2, eps, weight_decay, std::pow(beta1, t),
                             std::pow(beta2, t));
}

/// What the direction is multiplied with: lr |p| / |u|, from the sums of squares; lr where one of
/// them is 0.
TORCHAMP_KERNEL_FUNCTION double lamb_step(double lr, double weight_squares,
                                          double direction_squares) {
  const bool has_ratio = weight_squares > 0.0 && direction_squares > 0.0;
  return has_ratio ? lr * (::sqrt(weight_squares) / ::sqrt(direction_squares)) : lr;
}

template <typename L>
struct LambLanes {
  TORCHAMP_LANE_FUNCTION explicit LambLanes(const LambRule& rule)
      : one_minus_beta1(L::all(rule.one_minus_beta1)),
        beta2(L::all(rule.beta2)),
        one_minus_beta2(L::all(rule.one_minus_beta2)),
        inverse_bias_correction1(L::all(rule.inverse_bias_correction1)),
        root_bias_correction2(L::all(rule.root_bias_correction2)),
        eps(L::all(rule.eps)),
        weight_decay(L::all(rule.weight_decay)) {}
  L one_minus_beta1, beta2, one_minus_beta2, inverse_bias_correction1, root_bias_correction2, eps,
      weight_decay;
};

/// m <- m + (1 - b1) (g - m);  v <- b2 v + (1 - b2) g g
template <typename L>
TORCHAMP_LANE_FUNCTION void lamb_moments(const LambLanes<L>& c, L g, L& m, L& v) {
  m = fma(c.one_minus_beta1, g - m, m);
  v = fma(c.one_minus_beta2 * g, g, v * c.beta2);
}

/// u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + wd p
template <typename L>
TORCHAMP_LANE_FUNCTION L lamb_direction(const LambLanes<L>& c, L p, L m, L v) {
  const L denominator = sqrt(v) / c.root_bias_correction2 + c.eps;
  return fma(c.weight_decay, p, (m * c.inverse_bias_correction1) / denominator);
}

}  // namespace torchamp::kernels
