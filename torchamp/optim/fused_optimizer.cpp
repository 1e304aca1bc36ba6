#include "torchamp/optim/fused_optimizer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>

#include "torchamp/kernels/formula/clip.h"
#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/optim/clip_grad_norm.h"
#include "torchamp/optim/device_step.h"
#include "torchamp/optim/master_weights.h"
#include "torchamp/optim/moments.h"
#include "torchamp/optim/operator_step.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim {
namespace {

template <typename Predicate>
bool any_with_gradient(const torch::optim::Optimizer& optimizer, const Predicate& predicate) {
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.defined() && parameter.grad().defined() && predicate(parameter)) return true;
    }
  }
  return false;
}

bool has_sparse(const torch::optim::Optimizer& optimizer) {
  return any_with_gradient(
      optimizer, [](const at::Tensor& parameter) { return parameter.grad().is_sparse(); });
}

// The device of all parameters with a gradient, nothing when there are several.
std::optional<at::Device> one_device(const torch::optim::Optimizer& optimizer) {
  std::optional<at::Device> device;
  const bool has_another = any_with_gradient(optimizer, [&](const at::Tensor& parameter) {
    if (!device) device = parameter.device();
    return parameter.device() != *device;
  });
  if (has_another) return std::nullopt;
  return device.value_or(at::kCPU);
}

at::Tensor flag(bool value) {
  return at::scalar_tensor(value ? 1.0 : 0.0, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace

FusedOptimizer::FusedOptimizer(FusedOptimizer&&) noexcept = default;
FusedOptimizer& FusedOptimizer::operator=(FusedOptimizer&&) noexcept = default;
FusedOptimizer::~FusedOptimizer() = default;

FusedOptimizer::Claims& FusedOptimizer::Claims::operator=(Claims&& other) noexcept {
  if (this != &other) {
    release();
    parameters_.swap(other.parameters_);
  }
  return *this;
}

void FusedOptimizer::Claims::release() noexcept {
  for (const at::Tensor& parameter : parameters_) {
    multi_tensor::set_applies_factors(parameter, false);
  }
  parameters_.clear();
}

void FusedOptimizer::Claims::claim(std::vector<at::Tensor> parameters) {
  const auto is_same = [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); };
  if (std::equal(parameters.begin(), parameters.end(), parameters_.begin(), parameters_.end(),
                 is_same)) {
    return;
  }
  for (const at::Tensor& parameter : parameters) multi_tensor::set_applies_factors(parameter, true);
  release();
  parameters_ = std::move(parameters);
}

FusedOptimizer::FusedOptimizer(const FusedOptions& options)
    : options_(options), scales_(std::make_unique<detail::MomentScales>()) {
  set_max_grad_norm(options.max_grad_norm);
}

void FusedOptimizer::set_max_grad_norm(std::optional<double> max_grad_norm) {
  TORCH_CHECK_VALUE(!max_grad_norm || *max_grad_norm >= 0.0,
                    "[set_max_grad_norm] max_grad_norm is ", max_grad_norm.value_or(0.0),
                    "; a number >= 0 is accepted, or nothing.");
  options_.max_grad_norm = max_grad_norm;
}

void FusedOptimizer::refuse_archive() const {
  TORCH_CHECK_VALUE(options_.moments != Moments::k8Bit,
                    "[save] 8-bit moments cannot be saved in an archive of LibTorch, which has no "
                    "place for their factors; save optimizer_state_dict() instead.");
}

at::Tensor FusedOptimizer::saved_moment(const at::Tensor& parameter, const at::Tensor& moment,
                                        int number, bool is_positive) const {
  if (!moment.defined() || moment.scalar_type() != at::kByte) return moment;
  return detail::decode_moment(moment, scales_->of.at(parameter.unsafeGetTensorImpl()).at(number),
                               is_positive);
}

at::Tensor FusedOptimizer::loaded_moment(const at::Tensor& parameter, const at::Tensor& saved,
                                         int number, bool is_positive) {
  const at::ScalarType dtype = detail::moment_dtype(parameter, options_);
  if (dtype != at::kByte) {
    return saved.to(parameter.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  auto& scale = scales_->of[parameter.unsafeGetTensorImpl()].at(number);
  return detail::encode_moment(saved, is_positive, options_.seed, scale);
}

void FusedOptimizer::claim_factors() {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer().param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.defined()) continue;
      parameters.push_back(parameter);
    }
  }
  claims_.claim(std::move(parameters));
}

bool FusedOptimizer::can_step_scaled() const {
  // What is refused is refused by scaled_step(), before GradScaler has touched a gradient.
  return is_fused();
}

bool FusedOptimizer::holds_scale(const Scale& scale, const detail::PlanItem& item) {
  return scale.unscaled.count(detail::real_values(item.gradient).const_data_ptr()) == 0;
}

bool FusedOptimizer::is_fused() const {
  if (has_sparse(optimizer()) && takes_sparse()) return false;
  const std::optional<at::Device> device = one_device(optimizer());
  return device && (device->is_cpu() || multi_tensor::has_cuda_step(*device));
}

bool FusedOptimizer::is_on_gpu() const {
  const std::optional<at::Device> device = one_device(optimizer());
  return device && multi_tensor::has_cuda_step(*device);
}

// Refuses a step in a CUDA graph that would make states or masters: every replay would make them
// anew. Before a plan is made, which makes masters.
void FusedOptimizer::check_capture() const {
  const std::optional<at::Device> device = one_device(optimizer());
  if (!device || !multi_tensor::is_capturing(*device)) return;
  const auto refuse = [&](size_t group, size_t index, const at::Tensor& parameter,
                          const char* what) {
    TORCH_CHECK(false, "[", name(), "] A CUDA graph is being captured, and parameter ", index,
                " of group ", group, ", shape ", parameter.sizes(), ", ", what,
                " Make one step before the capture.");
  };
  const auto& groups = optimizer().param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t index = 0; index < groups[group].params().size(); ++index) {
      const at::Tensor& parameter = groups[group].params()[index];
      if (!parameter.defined() || !parameter.grad().defined()) continue;
      if (!device_step_ || !device_step_->knows(parameter)) {
        refuse(group, index, parameter,
               "has made no step yet; every replay would begin its state anew.");
      }
      if (!multi_tensor::is_16bit(parameter.scalar_type()) ||
          options_.low_precision_weights != LowPrecisionWeights::kMaster) {
        continue;
      }
      const auto master = detail::find_master(parameter);
      if (master == nullptr || !master->is_of(parameter)) {
        refuse(group, index, parameter,
               "was written since its last step; every replay would drop the rest of its float32 "
               "value.");
      }
    }
  }
}

amp::ScaledStep::Result FusedOptimizer::step_on_gpu(detail::StepPlan& plan, const Scale* scale) {
  const at::Device device = *one_device(optimizer());
  if (!device_step_ || device_step_->device() != device) {
    sync_state();
    device_step_ = std::make_unique<detail::DeviceStep>(device);
  }
  detail::DeviceStep::Settings settings;
  settings.measures = scale != nullptr || options_.max_grad_norm.has_value();
  settings.checks = scale != nullptr;
  settings.max_norm = options_.max_grad_norm;
  if (scale != nullptr) {
    settings.found_inf = scale->found_inf;
    settings.inverse_scale = scale->inverse;
    settings.is_scaled = [scale](const detail::PlanItem& item) {
      return holds_scale(*scale, item);
    };
  }
  const multi_tensor::CudaStepResult done = device_step_->run(plan, describe(plan), settings);
  if (settings.measures) last_grad_norm_ = done.norm;
  // Whether the step was skipped is not known here: nothing has changed then but versions.
  plan.finish(/*wrote_parameters=*/true, options_.consume_gradients);
  return {done.found_inf, done.has_nan};
}

void FusedOptimizer::sync_state() {
  if (!device_step_) return;
  device_step_->read_counts(
      [this](c10::TensorImpl* parameter, int64_t steps) { set_applied_steps(parameter, steps); });
}

void FusedOptimizer::refuse_sparse(const detail::StepPlan& plan) const {
  if (plan.sparse().empty()) return;
  TORCH_CHECK_VALUE(false, "[", name(), "] The gradient of ", plan.sparse().front().name(),
                    ", is sparse; a dense one is accepted. Use SGD without momentum and weight "
                    "decay, or make the embedding with sparse = false.");
}

void FusedOptimizer::note_norm(const detail::StepPlan& plan, double sum_of_squares) {
  const bool has_double =
      std::any_of(plan.items().begin(), plan.items().end(), [](const detail::PlanItem& item) {
        return item.gradient_stream.storage == kernels::Storage::kF64;
      });
  last_grad_norm_ = at::scalar_tensor(
      std::sqrt(sum_of_squares), at::TensorOptions().dtype(has_double ? at::kDouble : at::kFloat));
}

void FusedOptimizer::clip(detail::StepPlan& plan) const {
  if (!options_.max_grad_norm) return;
  const bool has_double = last_grad_norm_.scalar_type() == at::kDouble;
  const double factor =
      has_double
          ? kernels::clip_factor(*last_grad_norm_.const_data_ptr<double>(), *options_.max_grad_norm)
          : kernels::clip_factor(*last_grad_norm_.const_data_ptr<float>(), *options_.max_grad_norm);
  for (detail::PlanItem& item : plan.items()) {
    double& second = item.gradient_stream.second_factor;
    second = item.gradient_stream.storage == kernels::Storage::kF64
                 ? second * factor
                 : static_cast<float>(second) * static_cast<float>(factor);
  }
}

amp::ScaledStep::Result FusedOptimizer::scaled_step(const Scale& scale) {
  const at::NoGradGuard no_grad;
  const bool on_gpu = is_on_gpu();
  if (on_gpu) check_capture();
  detail::StepPlan plan(optimizer(), options_, name());
  refuse_sparse(plan);
  claim_factors();
  if (on_gpu) return step_on_gpu(plan, &scale);
  const double inverse = multi_tensor::host_value(scale.inverse);
  for (detail::PlanItem& item : plan.items()) {
    if (holds_scale(scale, item)) {
      item.gradient_stream.factor = inverse;
      item.gradient_stream.second_factor = 1.0;  // of an iteration that was left without a step
    }
  }
  const multi_tensor::GradTotals totals = multi_tensor::measure(plan.measured());
  note_norm(plan, totals.sum_of_squares);

  const bool was_found =
      scale.found_inf.defined() && multi_tensor::host_value(scale.found_inf) != 0.0F;
  const bool is_skipped = was_found || totals.has_nonfinite;
  if (is_skipped) {
    if (!options_.consume_gradients) {
      std::vector<multi_tensor::GradArray> scaled;
      for (detail::PlanItem& item : plan.items()) {
        if (item.gradient_stream.factor != 1.0 && !item.shares_gradient) {
          scaled.push_back({item.gradient_stream, item.count});
        }
      }
      multi_tensor::multiply(scaled);
    }
  } else {
    clip(plan);
    update(plan);
  }
  plan.finish(/*wrote_parameters=*/!is_skipped, options_.consume_gradients);
  Result result;
  result.found_inf = flag(is_skipped);
  result.has_nan = at::scalar_tensor(totals.has_nan, at::TensorOptions().dtype(at::kBool));
  return result;
}

void FusedOptimizer::plain_step() {
  const at::NoGradGuard no_grad;
  if (!is_fused()) {
    sync_state();
    claim_factors();
    if (options_.max_grad_norm) {
      last_grad_norm_ = clip_grad_norm_(claims_.parameters(), *options_.max_grad_norm);
    }
    detail::OperatorStep step(optimizer(), options_);
    step_by_operators();
    step.finish();
    if (options_.consume_gradients) {
      for (const at::Tensor& parameter : claims_.parameters()) parameter.mutable_grad().reset();
    }
    return;
  }
  claim_factors();
  const bool on_gpu = is_on_gpu();
  if (on_gpu) check_capture();
  detail::StepPlan plan(optimizer(), options_, name());
  refuse_sparse(plan);
  if (on_gpu) {
    step_on_gpu(plan, nullptr);
    return;
  }
  if (options_.max_grad_norm) {
    note_norm(plan, multi_tensor::measure(plan.measured()).sum_of_squares);
    clip(plan);
  }
  update(plan);
  plan.finish(/*wrote_parameters=*/true, options_.consume_gradients);
}

}  // namespace torchamp::optim
