#include "torchamp/nn/fused_norm.h"

#include <optional>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "torchamp/ops/channel_rows.h"
#include "torchamp/ops/channel_vector.h"

namespace torchamp::nn::detail {
namespace {

using ops::detail::ChannelRows;
using ops::detail::ChannelStatistics;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Function::apply takes no undefined tensor; one without numbers stands for it.
bool is_given(const at::Tensor& tensor) { return tensor.defined() && tensor.numel() > 0; }
at::Tensor or_empty(const at::Tensor& tensor, const at::Tensor& x) {
  return tensor.defined() ? tensor : at::empty({0}, x.options());
}
std::optional<at::Tensor> given(const at::Tensor& tensor) {
  return is_given(tensor) ? std::optional(tensor) : std::nullopt;
}

// Parameters in float32 or the input's dtype, dense, on CPU.
bool fits(const at::Tensor& parameter, const at::Tensor& x) {
  return !parameter.defined() ||
         (ops::detail::is_channel_vector(parameter, x.size(1)) &&
          (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == x.scalar_type()));
}

std::optional<ChannelRows> fused_rows(const at::Tensor& x, const at::Tensor& residual,
                                      const FusedNorm& norm) {
  auto rows = ChannelRows::of(x);
  const bool takes = rows.has_value() && (!residual.defined() || rows->holds(residual, x)) &&
                     fits(norm.weight, x) && fits(norm.bias, x) && fits(norm.running_mean, x) &&
                     fits(norm.running_var, x) &&
                     norm.running_mean.defined() == norm.running_var.defined();
  return takes ? rows : std::nullopt;
}

// Statistics that backward needs, in float32 whatever the parameters.
at::Tensor kept(const std::vector<double>& numbers, const at::Tensor& x) {
  at::Tensor tensor =
      at::empty({static_cast<int64_t>(numbers.size())}, x.options().dtype(at::kFloat));
  ops::detail::write_channels(numbers, tensor);
  return tensor;
}

struct FusedNormFunction : public torch::autograd::Function<FusedNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& residual, const at::Tensor& weight,
                            const at::Tensor& bias, const FusedNorm& norm) {
    const auto rows = ChannelRows::of(x);
    ChannelStatistics statistics;
    if (norm.uses_batch_statistics) {
      statistics = ops::detail::batch_statistics(*rows, x, norm.eps);
      ops::detail::update_running(statistics, norm.momentum, given(norm.running_mean),
                                  given(norm.running_var));
    } else {
      statistics = ops::detail::constant_statistics(norm.running_mean, norm.running_var, norm.eps);
    }
    at::Tensor y = at::empty_like(x, rows->format);
    kernels::NormForward forward;
    forward.x = x.const_data_ptr();
    forward.residual = is_given(residual) ? residual.const_data_ptr() : nullptr;
    forward.y = y.mutable_data_ptr();
    forward.relu = true;
    ops::detail::normalize_channels(*rows, statistics, given(weight), given(bias), forward);
    context->save_for_backward(
        {x, weight, kept(statistics.mean, x), kept(statistics.invstd, x), y});
    context->saved_data["batch"] = norm.uses_batch_statistics;
    context->saved_data["eps"] = norm.eps;
    context->saved_data["bias"] = bias.scalar_type();
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &invstd = saved[3],
                     &y = saved[4];
    const bool batch = context->saved_data["batch"].toBool();
    if (!grads[0].defined()) return variable_list(5);
    return at::GradMode::is_enabled()
               ? by_ops(context, grads[0], x, weight, mean, invstd, y, batch)
               : by_kernel(context, grads[0], x, weight, mean, invstd, y, batch);
  }

 private:
  static variable_list by_kernel(AutogradContext* context, const at::Tensor& grad_of_any_layout,
                                 const at::Tensor& x, const at::Tensor& weight,
                                 const at::Tensor& mean, const at::Tensor& invstd,
                                 const at::Tensor& y, bool batch) {
    const auto rows = ChannelRows::of(x);
    const at::Tensor grad = grad_of_any_layout.contiguous(rows->format);
    const bool wants_x = context->needs_input_grad(0),
               wants_residual = context->needs_input_grad(1);
    const bool wants_sums = context->needs_input_grad(2) || context->needs_input_grad(3);
    at::Tensor grad_x, grad_residual;
    if (wants_x || wants_residual) grad_x = at::empty_like(x, rows->format);
    if (wants_residual) grad_residual = at::empty_like(x, rows->format);
    kernels::NormBackward norm;
    norm.grad = grad.const_data_ptr();
    norm.x = x.const_data_ptr();
    norm.output = y.const_data_ptr();
    norm.grad_input = grad_x.defined() ? grad_x.mutable_data_ptr() : nullptr;
    norm.grad_residual = wants_residual ? grad_residual.mutable_data_ptr() : nullptr;
    const auto sums = ops::detail::channel_gradients(
        *rows, ops::detail::saved_statistics(mean, invstd), given(weight), batch, wants_sums, norm);
    const auto vector_of = [&](bool is_wanted, const std::vector<double>& numbers,
                               const auto& dtype) {
      if (!is_wanted) return at::Tensor();
      at::Tensor result = at::empty({rows->channels}, x.options().dtype(dtype()));
      ops::detail::write_channels(numbers, result);
      return result;
    };
    return {
        wants_x ? grad_x : at::Tensor(), grad_residual,
        vector_of(context->needs_input_grad(2), sums.weight, [&] { return weight.scalar_type(); }),
        vector_of(context->needs_input_grad(3), sums.bias,
                  [&] { return context->saved_data["bias"].toScalarType(); }),
        at::Tensor()};
  }

  // By ops that have gradients themselves. They read statistics in the parameters' dtype.
  static variable_list by_ops(AutogradContext* context, const at::Tensor& grad, const at::Tensor& x,
                              const at::Tensor& weight, const at::Tensor& mean,
                              const at::Tensor& invstd, const at::Tensor& y, bool batch) {
    const double eps = context->saved_data["eps"].toDouble();
    const at::Tensor g = grad.masked_fill(y <= 0, 0);
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor wide_weight = weight.to(at::kFloat);
    at::Tensor running_mean, running_var;
    if (!batch) {
      running_mean = mean;
      running_var = invstd.pow(-2) - eps;
    }
    const auto [grad_x, grad_weight, grad_bias] = at::native_batch_norm_backward(
        g.to(at::kFloat), wide, given(wide_weight), given(running_mean), given(running_var), mean,
        invstd, batch, eps, {true, true, true});
    const auto wanted = [&](size_t i, const at::Tensor& result, const auto& dtype) {
      return context->needs_input_grad(i) ? result.to(dtype()) : at::Tensor();
    };
    return {wanted(0, grad_x, [&] { return x.scalar_type(); }),
            wanted(1, g, [&] { return g.scalar_type(); }),
            wanted(2, grad_weight, [&] { return weight.scalar_type(); }),
            wanted(3, grad_bias, [&] { return context->saved_data["bias"].toScalarType(); }),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor batch_norm_relu(const at::Tensor& x, const at::Tensor& residual, const FusedNorm& norm) {
  if (fused_rows(x, residual, norm).has_value()) {
    return FusedNormFunction::apply(x, or_empty(residual, x), or_empty(norm.weight, x),
                                    or_empty(norm.bias, x), norm);
  }
  const at::Tensor y =
      at::batch_norm(x, given(norm.weight), given(norm.bias), given(norm.running_mean),
                     given(norm.running_var), norm.uses_batch_statistics, norm.momentum, norm.eps,
                     /*cudnn_enabled=*/true);
  return at::relu(residual.defined() ? y + residual : y);
}

}  // namespace torchamp::nn::detail
