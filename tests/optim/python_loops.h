#pragma once
// Python's single-tensor optimizer loops (foreach=False), operator for operator, as oracles: the
// same ATen kernels that Python calls. tests/parity compares them with Python itself.

#include <cmath>
#include <functional>
#include <map>
#include <vector>

#include <torch/torch.h>

namespace torchamp::testing {

struct LoopState {
  double step = 0;
  at::Tensor exp_avg, exp_avg_sq, max_exp_avg_sq, momentum_buffer;
};

// One step of torch.optim.Adam or AdamW on one tensor.
inline void adam_loop(at::Tensor parameter, at::Tensor grad, LoopState& state, double lr,
                      double beta1, double beta2, double eps, double weight_decay, bool decoupled,
                      bool amsgrad) {
  const torch::NoGradGuard no_grad;
  if (!state.exp_avg.defined()) {
    state.exp_avg = torch::zeros_like(parameter);
    state.exp_avg_sq = torch::zeros_like(parameter);
    if (amsgrad) state.max_exp_avg_sq = torch::zeros_like(parameter);
  }
  ++state.step;
  if (weight_decay != 0) {
    if (decoupled) {
      parameter.mul_(1 - lr * weight_decay);
    } else {
      grad = grad.add(parameter, weight_decay);
    }
  }
  at::Tensor m = state.exp_avg, v = state.exp_avg_sq, v_max = state.max_exp_avg_sq;
  if (parameter.is_complex()) {
    parameter = torch::view_as_real(parameter);
    grad = torch::view_as_real(grad);
    m = torch::view_as_real(m);
    v = torch::view_as_real(v);
    if (amsgrad) v_max = torch::view_as_real(v_max);
  }
  m.lerp_(grad, 1 - beta1);
  v.mul_(beta2).addcmul_(grad, grad, 1 - beta2);
  const double step_size = lr / (1 - std::pow(beta1, state.step));
  const double root_of_correction = std::pow(1 - std::pow(beta2, state.step), 0.5);
  if (amsgrad) v_max.copy_(torch::maximum(v_max, v));
  const at::Tensor denominator = ((amsgrad ? v_max : v).sqrt() / root_of_correction).add_(eps);
  parameter.addcdiv_(m, denominator, -step_size);
}

// One step of torch.optim.SGD on one tensor.
inline void sgd_loop(const at::Tensor& parameter, at::Tensor grad, LoopState& state, double lr,
                     double momentum, double dampening, double weight_decay, bool nesterov) {
  const torch::NoGradGuard no_grad;
  if (weight_decay != 0) grad = grad.add(parameter, weight_decay);
  if (momentum != 0) {
    if (!state.momentum_buffer.defined()) {
      state.momentum_buffer = grad.detach().clone();
    } else {
      state.momentum_buffer.mul_(momentum).add_(grad, 1 - dampening);
    }
    grad = nesterov ? grad.add(state.momentum_buffer, momentum) : state.momentum_buffer;
  }
  parameter.add_(grad, -lr);
}

// How many elements differ in their bits.
inline int64_t num_different(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return -1;
  const auto bits = [](const at::Tensor& x) {
    const at::Tensor dense = (x.is_complex() ? torch::view_as_real(x) : x).contiguous();
    const auto dtype = dense.element_size() == 8   ? torch::kLong
                       : dense.element_size() == 4 ? torch::kInt
                                                   : torch::kShort;
    return dense.view(dtype);
  };
  return bits(a.detach()).ne(bits(b.detach())).sum().item<int64_t>();
}

}  // namespace torchamp::testing
