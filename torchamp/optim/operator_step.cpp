#include "torchamp/optim/operator_step.h"

#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/optim/main_grad.h"

namespace torchamp::optim::detail {
namespace {}  // namespace

// Delegates, so that the destructor puts back what was changed when something throws.
OperatorStep::OperatorStep(const torch::optim::Optimizer& optimizer, const FusedOptions& options)
    : OperatorStep() {
  const at::NoGradGuard no_grad;
  const bool keeps_masters = options.low_precision_weights == LowPrecisionWeights::kMaster;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.defined() || !parameter.grad().defined() ||
          !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      Changed changed{parameter, {}, {}, nullptr};
      if (multi_tensor::is_16bit(parameter.grad().scalar_type()) ||
          multi_tensor::pending_factors(parameter.grad())) {
        changed.gradient = parameter.grad();
      }
      if (multi_tensor::is_16bit(parameter.scalar_type()) && keeps_masters)
        changed.master = master_of(parameter);
      if (!changed.gradient.defined() && changed.master == nullptr) continue;
      const at::Tensor exact = changed.gradient.defined() ? main_grad(parameter) : at::Tensor();
      changed_.push_back(changed);
      if (exact.defined()) parameter.mutable_grad() = exact;
      if (changed.master == nullptr) continue;
      changed.master->sync(parameter);
      const at::Tensor value = changed.master->to_float(parameter);
      changed_.back().weight = parameter.detach();
      parameter.set_data(value);
    }
  }
}

OperatorStep::~OperatorStep() {
  const at::NoGradGuard no_grad;
  for (const Changed& changed : changed_) put_back(changed);
}

void OperatorStep::put_back(const Changed& changed) const {
  if (changed.weight.defined()) changed.parameter.set_data(changed.weight);
  if (changed.gradient.defined()) changed.parameter.mutable_grad() = changed.gradient;
}

void OperatorStep::finish() {
  const at::NoGradGuard no_grad;
  for (const Changed& changed : std::exchange(changed_, {})) {
    const at::Tensor value = changed.parameter.detach();
    const at::Tensor gradient = changed.parameter.grad();
    put_back(changed);
    if (changed.master != nullptr) changed.master->set(changed.parameter, value);
    if (changed.gradient.defined() && multi_tensor::pending_factors(changed.gradient)) {
      changed.gradient.copy_(gradient);
      multi_tensor::set_pending_factors(changed.gradient, {});
    }
  }
}

}  // namespace torchamp::optim::detail
