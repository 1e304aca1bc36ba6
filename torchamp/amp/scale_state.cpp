#include "torchamp/amp/scale_state.h"

#include <algorithm>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include "torchamp/multi_tensor/tensor_values.h"

namespace torchamp::amp::detail {
namespace {

at::Tensor scalar(double value, at::ScalarType dtype, at::Device device) {
  return at::full({}, value, at::TensorOptions().dtype(dtype).device(device));
}

// The tensors must be usable in later autograd graphs, whatever mode the caller is in.
struct PlainMode {
  c10::InferenceMode no_inference{false};
  at::NoGradGuard no_grad;
};

}  // namespace

void ScaleState::place(at::Device device) {
  const PlainMode mode;
  const auto put = [&](at::Tensor& tensor, double value, at::ScalarType dtype) {
    if (tensor.defined() && tensor.device() == device) {
      tensor.fill_(value);
    } else {
      tensor = scalar(value, dtype, device);
    }
  };
  put(scale_, pending_.scale, at::kFloat);
  put(growth_tracker_, static_cast<double>(pending_.growth_tracker), at::kInt);
  put(overflow_run_, static_cast<double>(pending_.overflow_run), at::kInt);
  put(iterations_since_growth_, static_cast<double>(pending_.iterations_since_growth), at::kInt);
  previous_scale_ = at::Tensor();
  scale_was_set(pending_.scale);
  tracker_may_exceed_interval_ = pending_.growth_tracker > 0;
}

at::Tensor ScaleState::copy_on(at::Device device) {
  const PlainMode mode;
  at::Tensor copy = device == scale_.device() ? scale_.clone() : multi_tensor::on(device, scale_);
  for (auto& earlier : copies_) {
    if (earlier.device() == device) {
      earlier = copy;
      return copy;
    }
  }
  copies_.push_back(copy);
  return copy;
}

at::Tensor ScaleState::scale_on(at::Device device) {
  for (const auto& copy : copies_) {
    if (copy.device() == device && !moved_by_graph_) {
      return copy;
    }
  }
  return copy_on(device);
}

at::Tensor ScaleState::inverse() const {
  const at::NoGradGuard no_grad;
  return scale_.to(at::kDouble).reciprocal().to(at::kFloat);
}

void ScaleState::update(const at::Tensor& found_inf, const GradScalerOptions& rule,
                        double min_scale, bool may_be_bad) {
  const PlainMode mode;
  if (tracker_may_exceed_interval_) {
    // The kernel grows at "equals"; a run that is already longer must grow too.
    growth_tracker_.clamp_max_(rule.growth_interval - 1);
    tracker_may_exceed_interval_ = false;
  }
  previous_scale_ = scale_.clone();
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, rule.growth_factor,
                         rule.backoff_factor, rule.growth_interval);
  scale_.clamp_(min_scale, rule.max_scale);
  if (rule.hysteresis > 1) {
    const at::Tensor bad = found_inf.ne(0);
    overflow_run_.add_(1).mul_(bad);
    scale_.copy_(
        at::where(bad.logical_and(overflow_run_.lt(rule.hysteresis)), previous_scale_, scale_));
  }
  iterations_since_growth_.add_(1).mul_(scale_.le(previous_scale_));
  copies_.clear();
  if (rule.dynamic) {
    is_lower_bound_exact_ = false;
    if (may_be_bad) {
      lower_bound_ = std::max(lower_bound_ * rule.backoff_factor, min_scale);
    }
  }
}

void ScaleState::set(double scale) {
  const PlainMode mode;
  previous_scale_ = scale_.clone();
  scale_.fill_(scale);
  iterations_since_growth_.zero_();
  scale_was_set(scale);
}

void ScaleState::scale_was_set(double scale) {
  copies_.clear();
  lower_bound_ = scale;
  is_lower_bound_exact_ = true;
}

void ScaleState::load(const ScaleNumbers& numbers) {
  pending_ = numbers;
  if (on_device()) {
    place(scale_.device());
  }
}

double ScaleState::value() const { return on_device() ? scale_.item<double>() : pending_.scale; }

int64_t ScaleState::growth_tracker() const {
  return on_device() ? growth_tracker_.item<int64_t>() : pending_.growth_tracker;
}

ScaleNumbers ScaleState::numbers(bool with_overflow_run) const {
  if (!on_device()) {
    return pending_;
  }
  return {value(), growth_tracker(), with_overflow_run ? overflow_run_.item<int64_t>() : 0, 0};
}

int64_t ScaleState::iterations_since_growth() const {
  return on_device() ? iterations_since_growth_.item<int64_t>() : pending_.iterations_since_growth;
}

void ScaleState::set_iterations_since_growth(int64_t iterations) {
  pending_.iterations_since_growth = iterations;
  if (on_device()) {
    const PlainMode mode;
    iterations_since_growth_.fill_(iterations);
  }
}

std::optional<double> ScaleState::known() const {
  if (!on_device()) {
    return pending_.scale;
  }
  if (scale_.is_cpu()) {
    return *scale_.const_data_ptr<float>();
  }
  return is_lower_bound_exact_ && !moved_by_graph_ ? std::optional(lower_bound_) : std::nullopt;
}

bool ScaleState::changed_by_last_update() const {
  return previous_scale_.defined() && previous_scale_.ne(scale_).item<bool>();
}

void ScaleState::tighten_lower_bound() {
  if (!moved_by_graph_ && may_be_below_one() && !known()) {
    lower_bound_ = scale_.item<double>();
    is_lower_bound_exact_ = true;
  }
}

}  // namespace torchamp::amp::detail
