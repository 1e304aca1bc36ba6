// The iteration: scale, unscale_, step, update. State and settings are in grad_scaler_state.cpp,
// warnings in grad_scaler_warnings.cpp.

#include "torchamp/amp/grad_scaler.h"

#include <algorithm>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/util/Exception.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/optimizer_state.h"
#include "torchamp/amp/scale_state.h"
#include "torchamp/amp/scaled_backward.h"
#include "torchamp/amp/scaled_step.h"
#include "torchamp/amp/scaler_rules.h"
#include "torchamp/amp/step_history.h"
#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/multi_tensor/pending_factors.h"
#include "torchamp/multi_tensor/scaled_marks.h"
#include "torchamp/multi_tensor/unscale.h"

namespace torchamp::amp {
namespace {

using detail::Stage;

// Weights change while it lives, so casts of them are stale at its end, also after an exception.
struct WeightsChange {
  ~WeightsChange() { clear_autocast_cache(); }
};

at::Tensor defined_sum(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() ? a.add(b) : b;
}

const at::Tensor* first_gradient(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (parameter.defined() && parameter.grad().defined()) {
        return &parameter.grad();
      }
    }
  }
  return nullptr;
}

size_t count_parameters(const torch::optim::Optimizer& optimizer) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    count += group.params().size();
  }
  return count;
}

void require_checks(const detail::OptimizerState& state, const torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!state.found.empty(),
              "[step] No inf checks were recorded for this optimizer: none of its ",
              count_parameters(optimizer),
              " parameters has a gradient. Was backward() called, and does the loss depend on them "
              "(frozen parameters, a detached loss, an unused branch)? Leave out step() for it in "
              "such an iteration.");
}

// Gradients by what is to be done with their memory.
struct Parts {
  std::vector<at::Tensor> scaled, unscaled;  // in place
  std::vector<detail::Gradient> noted;       // the optimizer multiplies: the factor is noted
  std::vector<at::Tensor> noted_unscaled;    // it was noted before

  void add(const detail::Gradient& gradient, bool holds_scale) {
    if (!gradient.takes_factors) {
      if (holds_scale) multi_tensor::set_pending_factors(gradient.gradient, {});
      (holds_scale ? scaled : unscaled).push_back(gradient.values);
    } else if (holds_scale) {
      noted.push_back(gradient);
    } else {
      noted_unscaled.push_back(gradient.values);
    }
  }
};

void unscale(const Parts& parts, const detail::ScaleState& scale,
             multi_tensor::NonFiniteFlags& found) {
  const bool may_be_below_one =  // what a graph holds runs with any scale
      scale.may_be_below_one() || multi_tensor::is_capturing(scale.device());
  multi_tensor::unscale_(parts.scaled, scale.inverse(), found, may_be_below_one);
  multi_tensor::check_finite(parts.unscaled, found);
  std::vector<at::Tensor> products = parts.noted_unscaled;
  for (const detail::Gradient& gradient : parts.noted) products.push_back(gradient.values);
  multi_tensor::check_product_finite(products, scale.inverse(), found);
  for (const detail::Gradient& gradient : parts.noted) {
    multi_tensor::set_pending_factors(gradient.gradient, {scale.inverse(), {}});
  }
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  if (options_.enabled && options_.device == at::kCUDA && !at::detail::getCUDAHooks().hasCUDA()) {
    TORCH_WARN("torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.");
    options_.enabled = false;
  }
  if (options_.enabled) {
    const std::string wrong = detail::wrong_options(options_);
    TORCH_CHECK_VALUE(wrong.empty(), "[GradScaler] ", wrong);
  }
  if (!options_.dynamic) {
    options_.growth_factor = 1.0;
    options_.backoff_factor = 1.0;
  }
  min_scale_ = detail::floor_for(options_, options_.init_scale);
  marks_ = multi_tensor::ScaledMarks::make();
  history_ = std::make_unique<detail::StepHistory>(std::max<int64_t>(options_.skip_history, 0));
  scale_ = std::make_unique<detail::ScaleState>(options_.init_scale);
}

GradScaler::~GradScaler() = default;
GradScaler::GradScaler(GradScaler&&) noexcept = default;
GradScaler& GradScaler::operator=(GradScaler&&) noexcept = default;

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!options_.enabled) {
    if (!watched_disabled_ && outputs.defined() && outputs.requires_grad()) {
      watched_disabled_ = true;
      detail::warn_of_float16_in_backward(outputs);
    }
    return outputs;
  }
  TORCH_CHECK_VALUE(outputs.defined(),
                    "[scale] outputs must be a Tensor or an iterable of Tensors, but an undefined "
                    "Tensor came.");
  if (!scale_->on_device()) {
    scale_->place(outputs.device());
  }
  ++scale_calls_;
  // A graph must not hold a copy that was made before it.
  const at::Tensor factor =
      is_capturing() ? scale_->copy_on(outputs.device()) : scale_->scale_on(outputs.device());
  // A 0-dim half is promoted by the product itself; one with dimensions would overflow at 65504.
  at::Tensor scaled;
  if (outputs.scalar_type() == at::kHalf) {
    scaled = outputs.to(at::kFloat).mul(factor);
  } else if (outputs.scalar_type() == at::kComplexHalf) {
    scaled = outputs.to(at::kComplexFloat).mul(factor);
  } else {
    scaled = outputs.mul(factor);
  }
  if (scale_->known() != 1.0) {
    detail::mark_in_backward(scaled, marks_, factor);
  }
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  require_scale("unscale_", &optimizer);
  detail::OptimizerState& state = state_of(optimizer);
  TORCH_CHECK(state.stage != Stage::kUnscaled,
              "[unscale_] unscale_() has already been called on this optimizer since the last "
              "update(). Call it once an iteration, after the last backward(), and end every "
              "iteration with update(), also one whose step you leave out.");
  TORCH_CHECK(state.stage != Stage::kStepped,
              "[unscale_] unscale_() is being called after step(). End the iteration with "
              "scaler.update() first; the gradients are unscaled already.");
  if (auto* fused = dynamic_cast<ScaledStep*>(&optimizer)) {
    fused->claim_factors();
  }
  unscale_gradients(state, optimizer, "unscale_");
  state.stage = Stage::kUnscaled;
}

StepOutcome GradScaler::step(torch::optim::Optimizer& optimizer,
                             std::function<at::Tensor()> closure) {
  if (!options_.enabled) {
    const WeightsChange change;
    StepOutcome outcome = StepOutcome::make_applied(optimizer.step(std::move(closure)));
    history_->note(outcome, {});
    return outcome;
  }
  TORCH_CHECK(
      !closure,
      "[step] Closure use is not currently supported if GradScaler is enabled: the closure's "
      "gradients would be applied while still scaled. Nothing has been run; call step() "
      "without one, or make the scaler with enabled = false.");
  TORCH_CHECK(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
              "[step] LBFGS needs a closure. Closure use is not currently supported if GradScaler "
              "is enabled: its gradients would be used while still scaled. Nothing has been run; "
              "use AdamW, Adam, SGD or the like, or make the scaler with enabled = false.");
  require_scale("step", &optimizer);
  detail::OptimizerState& state = state_of(optimizer);
  TORCH_CHECK(state.stage != Stage::kStepped,
              "[step] step() has already been called since the last update(). Add scaler.update() "
              "at the end of the iteration, after step() of every optimizer.");
  if (auto* fused = dynamic_cast<ScaledStep*>(&optimizer); fused && fused->can_step_scaled()) {
    return fused_step(state, optimizer, *fused);
  }
  if (state.stage == Stage::kReady) {
    unscale_gradients(state, optimizer, "step");
  } else {
    recheck_gradients(state, optimizer);
  }
  require_checks(state, optimizer);
  state.stage = Stage::kUnscaled;

  const at::Device where = state.found.on_host() ? at::Device(at::kCPU) : scale_->device();
  StepOutcome outcome = StepOutcome::make_pending(state.found.sum(where));
  if (outcome.skipped()) {  // the one wait of a step
    scale_->tighten_lower_bound();
    outcome.set_has_nan(
        state.has_nan.defined()
            ? state.has_nan
            : multi_tensor::any_nan(detail::values_of(detail::gradients_of(optimizer, "step")),
                                    scale_->device()));
    state.stage = Stage::kStepped;
  } else {
    {
      const WeightsChange change;
      outcome.set_loss(optimizer.step());
    }
    state.stage = Stage::kStepped;
    state.is_known_good = true;
    state.note_stepped();
  }
  note(outcome);
  return outcome;
}

void GradScaler::note(const StepOutcome& outcome) {
  if (is_capturing()) {  // nothing has run, and replays are seen by nobody
    return;
  }
  history_->note(outcome, scale_->scale_on(scale_->device()));
}

bool GradScaler::is_capturing() const {
  return scale_->on_device() && multi_tensor::is_capturing(scale_->device());
}

void GradScaler::update() {
  if (!options_.enabled) {
    return;
  }
  require_scale("update", nullptr);
  at::Tensor found;
  bool is_known_good = true;
  for (const auto& state : optimizers_) {
    if (!state->found.empty()) {
      found = defined_sum(found, state->found.sum(scale_->device()));
      is_known_good &= state->is_known_good;
    }
  }
  TORCH_CHECK(
      found.defined(),
      "[update] No inf checks were recorded prior to update. Call step() or unscale_() with "
      "an optimizer that has gradients first, and update() once an iteration.");
  scale_->update(found, options_, min_scale_, !is_known_good);
  if (is_capturing()) {
    scale_->is_moved_by_graph();
  }
  finish_iteration();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) {
    return;
  }
  require_scale("update", nullptr);
  const std::string wrong = detail::wrong_scale(new_scale, options_);
  TORCH_CHECK_VALUE(wrong.empty(), "[update] new_scale cannot be used: ", wrong);
  scale_->set(new_scale);
  min_scale_ = std::min(min_scale_, detail::floor_for(options_, new_scale));
  finish_iteration();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!options_.enabled) {
    return;
  }
  require_scale("update", nullptr);
  const auto device_type = options_.device.value_or(scale_->device().type());
  TORCH_CHECK_VALUE(
      new_scale.defined() && new_scale.device().type() == device_type && new_scale.numel() == 1 &&
          !new_scale.requires_grad() && !new_scale.is_complex(),
      "[update] new_scale should be a float or a 1-element Tensor with requires_grad=False on ",
      c10::DeviceTypeName(device_type, /*lower_case=*/true), ".");
  update(new_scale.item<double>());
}

detail::OptimizerState& GradScaler::state_of(const torch::optim::Optimizer& optimizer) {
  for (const auto& state : optimizers_) {
    if (state->is_of(optimizer)) {
      return *state;
    }
  }
  optimizers_.push_back(std::make_unique<detail::OptimizerState>(optimizer));
  return *optimizers_.back();
}

void GradScaler::require_scale(const char* who, const torch::optim::Optimizer* optimizer) {
  if (!scale_->on_device() && loaded_ && optimizer != nullptr) {
    // A loaded scaler knows its scale; what it lacks is a device.
    if (const at::Tensor* gradient = first_gradient(*optimizer)) {
      scale_->place(gradient->device());
    }
  }
  TORCH_CHECK(
      scale_->on_device(), "[", who, "] Attempted ", who,
      " but _scale is None.  This may indicate your script did not use scaler.scale(loss or "
      "outputs) earlier in the iteration.");
}

void GradScaler::unscale_gradients(detail::OptimizerState& state,
                                   const torch::optim::Optimizer& optimizer, const char* who) {
  const auto gradients = detail::gradients_of(optimizer, who);  // refuses before anything changes
  if (gradients.empty()) {
    return;
  }
  warn_if_gradients_are_older_than_scale();
  warn_if_listed_twice(gradients);
  warn_if_bfloat16(gradients);
  Parts parts;
  for (const auto& gradient : gradients) {
    parts.add(gradient, !unscaled_by_another(state, gradient));
  }
  unscale(parts, *scale_, state.found);
  note_unscaled(state, gradients);
  state.unscaled_at = scale_calls_;
  if (state.found.on_host() && *state.found.sum(at::kCPU).const_data_ptr<float>() != 0.0F) {
    state.has_nan = multi_tensor::any_nan(detail::values_of(gradients), at::kCPU);
  }
}

// An optimizer that does it all in one pass: it gets the scale, and says what it found.
StepOutcome GradScaler::fused_step(detail::OptimizerState& state,
                                   torch::optim::Optimizer& optimizer, ScaledStep& fused) {
  const auto gradients = detail::gradients_of(optimizer, "step", /*takes_half=*/true);
  std::unordered_set<const void*> unscaled;
  if (state.stage == Stage::kReady && !gradients.empty()) {
    warn_if_gradients_are_older_than_scale();
    warn_if_bfloat16(gradients);
  }
  for (const auto& gradient : gradients) {
    const bool is_known = state.stage == Stage::kUnscaled && state.has_unscaled(gradient)
                              ? !is_scaled_anew(state, gradient)
                              : unscaled_by_another(state, gradient);
    if (is_known) {
      unscaled.insert(gradient.values.const_data_ptr());
    }
  }
  const at::Device where = gradients.empty() ? scale_->device() : gradients.front().values.device();
  if (!gradients.empty()) {
    state.found.on(where);
  }
  require_checks(state, optimizer);
  ScaledStep::Result result;
  {
    const WeightsChange change;
    result = fused.scaled_step({scale_->inverse(), unscaled, state.found.sum(where)});
  }
  state.found.on(where).add_(result.found_inf);
  state.stage = Stage::kStepped;
  note_unscaled(state, gradients);
  StepOutcome outcome = StepOutcome::make_pending(
      result.found_inf, state.has_nan.defined() ? state.has_nan : result.has_nan);
  if (result.found_inf.is_cpu()) {
    state.is_known_good = outcome.applied();
    if (outcome.skipped()) scale_->tighten_lower_bound();
  }
  note(outcome);
  return outcome;
}

void GradScaler::recheck_gradients(detail::OptimizerState& state,
                                   const torch::optim::Optimizer& optimizer) {
  Parts parts;
  const auto gradients = detail::gradients_of(optimizer, "step");
  for (const auto& gradient : gradients) {
    const bool is_known = state.has_unscaled(gradient) ? !is_scaled_anew(state, gradient)
                                                       : unscaled_by_another(state, gradient);
    parts.add(gradient, !is_known);
  }
  unscale(parts, *scale_, state.found);
  note_unscaled(state, gradients);
}

// Whether a backward pass since unscale_() has put a scaled gradient in the place of the unscaled
// one. What it has added to the unscaled one cannot be taken out again.
bool GradScaler::is_scaled_anew(const detail::OptimizerState& state,
                                const detail::Gradient& gradient) {
  if (!marks_->has(gradient.parameter)) {
    return false;
  }
  const auto change = state.change_of(gradient);
  if (change == detail::OptimizerState::Change::kWritten) {
    warn_of_mixture(gradient);
  }
  return change == detail::OptimizerState::Change::kReplaced;
}

// All of `gradients` hold unscaled values now.
void GradScaler::note_unscaled(detail::OptimizerState& state,
                               const std::vector<detail::Gradient>& gradients) {
  // Values that are finite one by one may have sums, the true gradient, that are not.
  multi_tensor::check_finite(detail::coalesced_sums(gradients), state.found);
  std::vector<at::Tensor> parameters;
  parameters.reserve(gradients.size());
  for (const auto& gradient : gradients) {
    state.note_unscaled(gradient);
    parameters.push_back(gradient.parameter);
  }
  marks_->remove(parameters);
}

bool GradScaler::unscaled_by_another(const detail::OptimizerState& state,
                                     const detail::Gradient& gradient) {
  for (const auto& other : optimizers_) {
    if (other.get() == &state ||
        !other->owns_unscaled(gradient, scale_calls_ > other->unscaled_at)) {
      continue;
    }
    warn_of_shared(gradient);
    return true;
  }
  return false;
}

void GradScaler::finish_iteration() {
  optimizers_.clear();
  marks_->clear();
  scale_calls_at_update_ = scale_calls_;
  if (is_capturing()) {
    return;
  }
  warn_if_many_skips(history_->end_iteration());
}

}  // namespace torchamp::amp
