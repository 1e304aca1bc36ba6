#include "torchamp/optim/step_plan.h"

#include <sstream>
#include <unordered_set>
#include <utility>

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/multi_tensor/pending_factors.h"

namespace torchamp::optim::detail {
namespace {

using kernels::Storage;

bool has_order_of(const at::Tensor& tensor, const at::Tensor& other) {
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    if (tensor.size(d) > 1 && tensor.stride(d) != other.stride(d)) return false;
  }
  return true;
}

at::Tensor copy_in_order_of(const at::Tensor& tensor, const at::Tensor& like) {
  at::Tensor copy = at::empty_strided(like.sizes(), like.strides(), tensor.options());
  copy.copy_(tensor);
  return copy;
}

// A dense tensor with the values of `tensor`: itself, or a copy where it has gaps.
at::Tensor dense(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor : tensor.contiguous();
}

void check_gradient(const PlanItem& item, const std::string& who) {
  const at::Tensor& gradient = item.gradient;
  TORCH_CHECK_VALUE(gradient.sizes() == item.parameter.sizes(), who, " The gradient of ",
                    item.name(), ", has shape ", gradient.sizes(),
                    "; the parameter's own is accepted.");
  TORCH_CHECK_VALUE(gradient.device() == item.parameter.device(), who, " The gradient of ",
                    item.name(), ", is on ", gradient.device(), " and the parameter on ",
                    item.parameter.device(), "; one device is accepted.");
  TORCH_CHECK_VALUE(gradient.layout() == at::kStrided || gradient.layout() == at::kSparse, who,
                    " The gradient of ", item.name(), ", has layout ", gradient.layout(),
                    "; Strided or Sparse (COO) is accepted. Convert it with to_dense().");
  const auto is_double = [](const at::Tensor& tensor) {
    return c10::toRealValueType(tensor.scalar_type()) == at::kDouble;
  };
  TORCH_CHECK_VALUE(is_double(gradient) == is_double(item.parameter) &&
                        gradient.is_complex() == item.parameter.is_complex(),
                    who, " The gradient of ", item.name(), ", is ", gradient.scalar_type(),
                    " and the parameter ", item.parameter.scalar_type(),
                    "; both of double precision or neither, both complex or neither is accepted.");
}

void check_parameter(const PlanItem& item, const FusedOptions& options, const std::string& who) {
  const at::Tensor& parameter = item.parameter;
  TORCH_CHECK_VALUE(parameter.layout() == at::kStrided, who, " ", item.name(), ", has layout ",
                    parameter.layout(), "; Strided is accepted.");
  TORCH_CHECK_VALUE(at::has_internal_overlap(parameter) != at::MemOverlap::Yes, who, " ",
                    item.name(),
                    ", has elements that share memory (an expanded tensor), so it cannot be "
                    "changed in place; clone() it first.");
  TORCH_CHECK_VALUE(!parameter.is_inference(), who, " ", item.name(),
                    ", is an inference tensor, which cannot be changed outside of inference mode; "
                    "clone() it first.");
  TORCH_CHECK_VALUE(parameter.scalar_type() != at::kHalf ||
                        options.low_precision_weights != LowPrecisionWeights::kStochastic,
                    who, " ", item.name(),
                    ", is Half; LowPrecisionWeights::kStochastic takes BFloat16, use kMaster.");
  TORCH_CHECK_VALUE(!multi_tensor::is_16bit(parameter.scalar_type()) ||
                        options.low_precision_weights != LowPrecisionWeights::kMaster ||
                        parameter.is_non_overlapping_and_dense(),
                    who, " ", item.name(),
                    ", is a slice with gaps; a master is kept for dense memory only. contiguous() "
                    "it, or choose LowPrecisionWeights::kPlain.");
}

// What kernels see of the parameter.
void place_parameter(PlanItem& item, const FusedOptions& options, const std::string& who) {
  const auto name = [&] { return who + " " + item.name() + ","; };
  item.parameter_values = dense(real_values(item.parameter));
  item.count = item.parameter_values.numel();
  item.parameter_stream.storage = multi_tensor::storage_of(item.parameter_values, name);
  if (multi_tensor::is_16bit(item.parameter.scalar_type())) {
    if (options.low_precision_weights == LowPrecisionWeights::kStochastic) {
      item.parameter_stream.storage = Storage::kBf16Stochastic;
    } else if (options.low_precision_weights == LowPrecisionWeights::kMaster) {
      item.master = master_of(item.parameter);
      item.master->sync(item.parameter);
      item.parameter_stream = item.master->stream();
    }
  }
  item.parameter_stream.data = item.parameter_values.data_ptr();
}

void place_gradient(PlanItem& item, const FusedOptions& options, const std::string& who) {
  const auto name = [&] { return who + " The gradient of " + item.name() + ","; };
  at::Tensor gradient = item.gradient;
  if (gradient.is_conj() || gradient.is_neg()) {
    gradient = gradient.resolve_conj().resolve_neg();
    item.gradient.copy_(gradient);
  }
  gradient = real_values(gradient);
  item.measured_values = dense(gradient);
  item.gradient_values = has_order_of(item.measured_values, item.parameter_values)
                             ? item.measured_values
                             : copy_in_order_of(gradient, item.parameter_values);
  item.gradient_stream.storage = multi_tensor::storage_of(gradient, name);
  item.gradient_stream.data = item.gradient_values.data_ptr();
  item.gradient_stream.write_back = !options.consume_gradients;
  if (const auto factors = multi_tensor::pending_factors(item.gradient)) {
    if (multi_tensor::has_cuda_step(item.parameter.device())) {  // stay where they are: reading
                                                                 // them would wait for the device
      item.factor = factors->factor;
      item.second_factor = factors->second_factor;
      return;
    }
    multi_tensor::set_factors(item.gradient_stream, *factors);
  }
}

}  // namespace

std::string PlanItem::name() const {
  std::ostringstream text;
  text << "parameter " << index << " of group " << group << ", shape " << parameter.sizes();
  return text.str();
}

StepPlan::StepPlan(const torch::optim::Optimizer& optimizer, const FusedOptions& options,
                   const char* who_name) {
  const at::NoGradGuard no_grad;
  const std::string who = std::string("[") + who_name + "]";
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto& groups = optimizer.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t index = 0; index < groups[group].params().size(); ++index) {
      const at::Tensor& parameter = groups[group].params()[index];
      if (!parameter.defined() || !parameter.grad().defined() ||
          !seen.insert(parameter.unsafeGetTensorImpl()).second) {
        continue;
      }
      PlanItem item;
      item.group = group;
      item.index = index;
      item.parameter = parameter;
      item.gradient = parameter.grad();
      check_gradient(item, who);
      check_parameter(item, options, who);
      (item.gradient.is_sparse() ? sparse_ : items_).push_back(std::move(item));
    }
  }
  std::unordered_set<const void*> gradients;
  for (PlanItem& item : items_) {
    place_parameter(item, options, who);
    place_gradient(item, options, who);
    item.shares_gradient =
        item.count > 0 && !gradients.insert(item.measured_values.const_data_ptr()).second;
    if (item.shares_gradient) {
      item.gradient_values = copy_in_order_of(item.gradient_values, item.parameter_values);
      item.gradient_stream.data = item.gradient_values.data_ptr();
    }
  }
}

std::vector<int64_t> StepPlan::counts() const {
  std::vector<int64_t> counts;
  counts.reserve(items_.size());
  for (const PlanItem& item : items_) counts.push_back(item.count);
  return counts;
}

std::vector<multi_tensor::GradArray> StepPlan::measured() const {
  std::vector<multi_tensor::GradArray> gradients;
  gradients.reserve(items_.size());
  for (const PlanItem& item : items_) {
    multi_tensor::GradArray array{item.gradient_stream, item.count};
    array.stream.data = item.measured_values.data_ptr();
    gradients.push_back(array);
  }
  return gradients;
}

void StepPlan::finish(bool wrote_parameters, bool consume_gradients) {
  const at::NoGradGuard no_grad;
  for (PlanItem& item : items_) {
    if (wrote_parameters) {
      const at::Tensor parameter = real_values(item.parameter);
      if (item.parameter_values.is_same(parameter) ||
          item.parameter_values.data_ptr() == parameter.data_ptr()) {
        bump_version(item.parameter);
        if (item.master) item.master->note_written(item.parameter);
      } else {
        parameter.copy_(item.parameter_values);
      }
    }
    multi_tensor::set_pending_factors(item.gradient, {});
    if (consume_gradients) {
      item.parameter.mutable_grad().reset();
    } else if (!item.shares_gradient &&
               (item.gradient_stream.factor != 1.0 || item.gradient_stream.second_factor != 1.0 ||
                item.has_factor)) {
      const at::Tensor gradient = real_values(item.gradient);
      if (at::has_internal_overlap(gradient) == at::MemOverlap::Yes) {  // expanded
        item.parameter.mutable_grad() = item.gradient.is_complex()
                                            ? at::view_as_complex(item.gradient_values)
                                            : item.gradient_values;
      } else if (item.gradient_values.data_ptr() == gradient.data_ptr()) {
        bump_version(item.gradient);
      } else {
        gradient.copy_(item.gradient_values);
      }
    }
  }
}

void bump_version(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

at::Tensor real_values(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

bool has_order_of_values(const at::Tensor& state, const PlanItem& item) {
  const at::Tensor values = real_values(state);
  return values.is_non_overlapping_and_dense() && has_order_of(values, item.parameter_values);
}

at::Tensor in_order_of(const at::Tensor& state, const PlanItem& item) {
  if (has_order_of_values(state, item)) return state;
  const at::Tensor values = real_values(state);
  at::Tensor copy = copy_in_order_of(values, item.parameter_values);
  return state.is_complex() ? at::view_as_complex(copy) : copy;
}

}  // namespace torchamp::optim::detail
