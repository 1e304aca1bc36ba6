#pragma once
// SGD with momentum over a lane, in the order of operations of Python's single-tensor loop on a CPU
// with fused multiply-add, so that the bits are the same.

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// The numbers of one step, in double; a lane rounds each to its own type.
///
/// Source: PyTorch torch/optim/sgd.py, `_single_tensor_sgd`; Sutskever et al. 2013.
struct SgdRule {
  double weight_decay = 0.0;
  double momentum = 0.0;
  double one_minus_dampening = 1.0;
  double minus_lr = 0.0;
  bool nesterov = false;
  bool rounds_products = false;  ///< complex parameters: Python rounds each product by itself
  bool is_first = false;         ///< the momentum buffer takes the gradient as it is
};

template <typename L>
struct SgdLanes {
  TORCHAMP_LANE_FUNCTION explicit SgdLanes(const SgdRule& rule)
      : weight_decay(L::all(rule.weight_decay)),
        momentum(L::all(rule.momentum)),
        one_minus_dampening(L::all(rule.one_minus_dampening)),
        minus_lr(L::all(rule.minus_lr)),
        rounds_products(rule.rounds_products) {}
  L weight_decay, momentum, one_minus_dampening, minus_lr;
  bool rounds_products;

  TORCHAMP_LANE_FUNCTION L multiply_add(L a, L b, L sum) const {
    return rounds_products ? sum + a * b : fma(a, b, sum);
  }
};

/// g <- g + wd p;  b <- mu b + (1 - dampening) g, or g at first;  p <- p - lr (b, or g + mu b)
template <bool kDecay, bool kMomentum, typename L>
TORCHAMP_LANE_FUNCTION void sgd_apply(const SgdLanes<L>& c, bool is_first, bool nesterov, L g, L& p,
                                      L& buffer) {
  if constexpr (kDecay) g = c.multiply_add(p, c.weight_decay, g);
  if constexpr (kMomentum) {
    buffer = is_first ? g : c.multiply_add(g, c.one_minus_dampening, buffer * c.momentum);
    g = nesterov ? c.multiply_add(buffer, c.momentum, g) : buffer;
  }
  p = c.multiply_add(g, c.minus_lr, p);
}

}  // namespace torchamp::kernels
