#include "torchamp/amp/optimizer_state.h"

#include <limits>
#include <set>
#include <sstream>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "torchamp/amp/scaled_step.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::amp::detail {
namespace {

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : tensor._version();
}

WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }

const void* target(const WeakTensor& tensor) { return tensor._unsafe_get_target(); }

// The place of a parameter whose gradient is that of an earlier one.
constexpr size_t kCountedElsewhere = std::numeric_limits<size_t>::max();

std::string place(size_t group, size_t index) {
  return "parameter " + std::to_string(index) + " of group " + std::to_string(group);
}

}  // namespace

std::string Gradient::name() const {
  std::ostringstream text;
  text << place(group, index) << ", shape " << parameter.sizes();
  return text.str();
}

std::vector<Gradient> gradients_of(const torch::optim::Optimizer& optimizer, const char* who,
                                   bool takes_half) {
  std::vector<Gradient> gradients;
  std::unordered_map<const void*, size_t> places;  // of parameters, in `gradients`
  std::set<std::pair<const void*, int64_t>> memory;
  const bool is_scaled_step = dynamic_cast<const ScaledStep*>(&optimizer) != nullptr;
  const auto& groups = optimizer.param_groups();
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t i = 0; i < groups[g].params().size(); ++i) {
      const at::Tensor& parameter = groups[g].params()[i];
      if (!parameter.defined() || !parameter.grad().defined()) {
        continue;
      }
      const auto [first, is_new] =
          places.emplace(parameter.unsafeGetTensorImpl(), gradients.size());
      if (!is_new) {
        if (first->second != kCountedElsewhere) {
          gradients[first->second].listed_again = place(g, i);
        }
        continue;
      }
      Gradient gradient{parameter, parameter.grad(), {}, g, i, false, {}};
      const auto dtype = gradient.gradient.scalar_type();
      gradient.takes_factors =
          multi_tensor::is_16bit(dtype) && !gradient.gradient.is_sparse() && is_scaled_step;
      const bool is_half = dtype == at::kHalf || dtype == at::kComplexHalf;
      TORCH_CHECK_VALUE(!is_half || takes_half || gradient.takes_factors, "[", who,
                        "] Attempting to unscale FP16 gradients: the gradient of ", gradient.name(),
                        ", is ", dtype,
                        "; Float, BFloat16 or Double is accepted. Were the parameters cast with "
                        "model.to(kHalf)? Keep them in float32 and run the forward pass under "
                        "Autocast, or use to_low_precision() and an optimizer of "
                        "torchamp::optim, which keeps a master.");
      gradient.values = multi_tensor::tensor_values(gradient.gradient, [&] {
        return std::string("[") + who + "] The gradient of " + gradient.name() + ",";
      });
      if (gradient.values.numel() == 0 ||
          memory.insert({gradient.values.const_data_ptr(), gradient.values.numel()}).second) {
        gradients.push_back(std::move(gradient));
      } else {
        first->second = kCountedElsewhere;
      }
    }
  }
  return gradients;
}

std::vector<at::Tensor> values_of(const std::vector<Gradient>& gradients) {
  std::vector<at::Tensor> values;
  values.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    values.push_back(gradient.values);
  }
  return values;
}

std::vector<at::Tensor> coalesced_sums(const std::vector<Gradient>& gradients) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const auto& gradient : gradients) {
    if (gradient.gradient.is_sparse() && !gradient.gradient.is_coalesced()) {
      sums.push_back(gradient.gradient.coalesce()._values());
    }
  }
  return sums;
}

OptimizerState::OptimizerState(const torch::optim::Optimizer& optimizer) : address_(&optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.defined()) {
        parameters_.push_back(weak(parameter));
      }
    }
  }
}

bool OptimizerState::is_of(const torch::optim::Optimizer& optimizer) const {
  if (&optimizer != address_) {
    return false;
  }
  size_t position = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (position == parameters_.size()) {
        return true;
      }
      if (parameter.defined() &&
          parameter.unsafeGetTensorImpl() != target(parameters_[position++])) {
        return false;
      }
    }
  }
  return position == parameters_.size();
}

void OptimizerState::note_unscaled(const Gradient& gradient) {
  unscaled_.insert_or_assign(gradient.parameter.unsafeGetTensorImpl(),
                             UnscaledGradient{weak(gradient.parameter), weak(gradient.gradient),
                                              version_of(gradient.gradient)});
}

bool OptimizerState::has_unscaled(const Gradient& gradient) const {
  return unscaled_.count(gradient.parameter.unsafeGetTensorImpl()) > 0;
}

OptimizerState::Change OptimizerState::change_of(const Gradient& gradient) const {
  const UnscaledGradient& unscaled = unscaled_.at(gradient.parameter.unsafeGetTensorImpl());
  if (target(unscaled.gradient) != gradient.gradient.unsafeGetTensorImpl()) {
    return Change::kReplaced;
  }
  return unscaled.version == version_of(gradient.gradient) ? Change::kNone : Change::kWritten;
}

bool OptimizerState::owns_unscaled(const Gradient& gradient, bool scaled_since) const {
  const auto found = unscaled_.find(gradient.parameter.unsafeGetTensorImpl());
  if (found == unscaled_.end() ||
      target(found->second.gradient) != gradient.gradient.unsafeGetTensorImpl()) {
    return false;
  }
  return found->second.version == version_of(gradient.gradient) ||
         (stage == Stage::kUnscaled && !scaled_since);
}

void OptimizerState::note_stepped() {
  for (auto& [parameter, unscaled] : unscaled_) {
    if (auto gradient = unscaled.gradient.lock()) {
      unscaled.version = version_of(at::Tensor(std::move(gradient)));
    }
  }
}

}  // namespace torchamp::amp::detail
