#include "torchamp/optim/clip_grad_norm.h"

#include <cmath>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "torchamp/multi_tensor/norm.h"
#include "torchamp/multi_tensor/scaled_marks.h"

namespace torchamp::optim {
namespace {

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  std::unordered_set<const void*> seen;
  for (const auto& parameter : parameters) {
    if (parameter.defined() && parameter.grad().defined() &&
        seen.insert(parameter.unsafeGetTensorImpl()).second) {
      gradients.push_back(parameter.grad());
    }
  }
  return gradients;
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
  at::Tensor norm = multi_tensor::total_norm(gradients, norm_type);
  if (error_if_nonfinite) {
    const double value = norm.item<double>();
    TORCH_CHECK(std::isfinite(value), "[clip_grad_norm_] The total norm of order ", norm_type,
                " of the gradients is ", value,
                ", so they cannot be clipped; a finite norm is needed. Under a GradScaler leave "
                "error_if_nonfinite off: step() skips such an iteration.");
  }
  // The reciprocal times max_norm, not a division: Python's `max_norm / tensor` computes that.
  const at::Tensor factor = norm.add(1e-6).reciprocal().mul(max_norm).clamp_max(1.0);
  multi_tensor::multiply_(gradients, factor);
  return norm;
}

at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type) {
  return multi_tensor::total_norm(gradients_of(parameters), norm_type);
}

}  // namespace torchamp::optim
