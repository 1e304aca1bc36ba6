#include "torchamp/optim/clip_grad_norm.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>

#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/multi_tensor/norm.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/multi_tensor/scaled_marks.h"
#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::optim {
namespace {

// A gradient, and the factors that belong to it where its optimizer is the one to multiply.
struct Gradient {
  at::Tensor parameter;
  at::Tensor gradient;
  multi_tensor::PendingFactors factors;

  bool takes_factors() const {
    return multi_tensor::is_16bit(gradient.scalar_type()) && !gradient.is_sparse() &&
           multi_tensor::applies_factors(parameter);
  }
};

std::vector<Gradient> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<Gradient> gradients;
  gradients.reserve(parameters.size());
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (parameter.defined() && parameter.grad().defined() &&
        seen.insert(parameter.unsafeGetTensorImpl()).second) {
      const at::Tensor& gradient = parameter.grad();
      multi_tensor::PendingFactors factors =
          multi_tensor::pending_factors(gradient).value_or(multi_tensor::PendingFactors{});
      // What was written since an earlier clip is another gradient: zero_grad() without a step.
      if (factors.is_written) factors.second_factor = at::Tensor();
      gradients.push_back({parameter, gradient, factors});
    }
  }
  return gradients;
}

// Whether the kernels can measure and multiply it.
bool is_for_kernels(const at::Tensor& gradient) {
  const auto dtype = c10::toRealValueType(gradient.scalar_type());
  return gradient.is_cpu() && !gradient.is_conj() && !gradient.is_neg() &&
         (gradient.layout() == at::kStrided || gradient.layout() == at::kSparse) &&
         (dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 ||
          (dtype == at::kHalf && !gradient.is_complex()));
}

// The gradient's numbers as dense real memory; a copy where they have gaps.
at::Tensor values_of(const at::Tensor& gradient) {
  at::Tensor values = gradient.is_sparse() ? gradient.coalesce()._values() : gradient;
  if (values.is_complex()) values = at::view_as_real(values);
  return values.is_non_overlapping_and_dense() ? values : values.contiguous();
}

kernels::GradStream stream_of(const at::Tensor& values, const Gradient& gradient) {
  kernels::GradStream stream;
  stream.storage = multi_tensor::storage_of(values, [] { return "[clip_grad_norm_] A gradient"; });
  stream.data = values.data_ptr();
  multi_tensor::set_factors(stream, gradient.factors);
  return stream;
}

at::Tensor multiplied(const Gradient& gradient) {
  at::Tensor product = gradient.gradient;
  for (const at::Tensor& factor : {gradient.factors.factor, gradient.factors.second_factor}) {
    if (factor.defined()) {
      product = product.to(at::kFloat).mul(multi_tensor::on(product.device(), factor));
    }
  }
  return product;
}

at::Tensor norm_of(const std::vector<Gradient>& gradients, double norm_type) {
  const bool all_for_kernels =
      std::all_of(gradients.begin(), gradients.end(),
                  [](const Gradient& each) { return is_for_kernels(each.gradient); });
  if (norm_type != 2.0 || !all_for_kernels) {
    std::vector<at::Tensor> products;
    products.reserve(gradients.size());
    for (const Gradient& gradient : gradients) products.push_back(multiplied(gradient));
    return multi_tensor::total_norm(products, norm_type);
  }
  at::ScalarType dtype = at::kFloat;
  std::vector<at::Tensor> values;
  std::vector<multi_tensor::GradArray> arrays;
  for (const Gradient& gradient : gradients) {
    values.push_back(values_of(gradient.gradient));
    arrays.push_back({stream_of(values.back(), gradient), values.back().numel()});
    if (values.back().scalar_type() == at::kDouble) dtype = at::kDouble;
  }
  const double norm = std::sqrt(multi_tensor::measure(arrays).sum_of_squares);
  return at::scalar_tensor(norm, at::TensorOptions().dtype(dtype));
}

// Multiplies float32 gradients on CPU by kernels, others by operators; notes the factor for those
// that take it.
void multiply(const std::vector<Gradient>& gradients, const at::Tensor& factor) {
  const bool is_known = factor.is_cpu() && factor.scalar_type() == at::kFloat;
  if (is_known && multi_tensor::host_value(factor) == 1.0F) {
    for (const Gradient& each : gradients) {  // what was dropped of an earlier clip stays dropped
      if (each.takes_factors()) multi_tensor::set_pending_factors(each.gradient, each.factors);
    }
    return;
  }
  std::vector<at::Tensor> by_operators;
  std::vector<multi_tensor::GradArray> by_kernels;
  for (const Gradient& each : gradients) {
    const at::Tensor& gradient = each.gradient;
    if (each.takes_factors()) {
      at::Tensor second = each.factors.second_factor;
      second = second.defined() ? second.mul(factor.to(second.device())) : factor.to(at::kFloat);
      multi_tensor::set_pending_factors(gradient, {each.factors.factor, second});
    } else if (is_known && gradient.is_cpu() && gradient.scalar_type() == at::kFloat &&
               gradient.layout() == at::kStrided && gradient.is_non_overlapping_and_dense()) {
      multi_tensor::GradArray array{stream_of(gradient, {}), gradient.numel()};
      array.stream.factor = multi_tensor::host_value(factor);
      by_kernels.push_back(array);
      if (!gradient.is_inference()) gradient.unsafeGetTensorImpl()->bump_version();
    } else {
      by_operators.push_back(gradient);
    }
  }
  multi_tensor::multiply(by_kernels);
  multi_tensor::multiply_(by_operators, factor);
}

}  // namespace

at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                           double norm_type, bool error_if_nonfinite) {
  TORCH_CHECK_VALUE(max_norm >= 0.0, "[clip_grad_norm_] max_norm is ", max_norm,
                    "; a number >= 0 is accepted.");
  TORCH_CHECK_VALUE(!std::isnan(norm_type),
                    "[clip_grad_norm_] norm_type is NaN; a number or "
                    "infinity is accepted.");
  const at::NoGradGuard no_grad;
  if (const auto scale = multi_tensor::report_scale_left_in(parameters)) {
    TORCH_WARN("[clip_grad_norm_] The gradients still hold a loss scale of ", *scale,
               ", so max_norm = ", max_norm,
               " is compared with a norm that is as many times too large. Call "
               "scaler.unscale_(optimizer) after backward() and before clip_grad_norm_().");
  }
  const auto gradients = gradients_of(parameters);
  at::Tensor norm = norm_of(gradients, norm_type);
  if (error_if_nonfinite) {
    const double value = norm.item<double>();
    TORCH_CHECK(std::isfinite(value), "[clip_grad_norm_] The total norm of order ", norm_type,
                " of the gradients is ", value,
                ", so they cannot be clipped; a finite norm is needed. Under a GradScaler leave "
                "error_if_nonfinite off: step() skips such an iteration.");
  }
  // The reciprocal times max_norm, not a division: Python's `max_norm / tensor` computes that.
  const at::Tensor factor = norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  multiply(gradients, factor);
  return norm;
}

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  const at::NoGradGuard no_grad;
  return norm_of(gradients_of(parameters), norm_type);
}

}  // namespace torchamp::optim
