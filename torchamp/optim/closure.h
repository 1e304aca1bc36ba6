#pragma once
// evaluate(): a step's closure, called as LibTorch's optimizers call it.

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

namespace torchamp::optim::detail {

/// The closure's loss, computed with gradients on; undefined without a closure.
inline at::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_grad(true);
  return closure();
}

}  // namespace torchamp::optim::detail
