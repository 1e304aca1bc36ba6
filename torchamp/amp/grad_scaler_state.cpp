// GradScaler's settings and state_dict. The iteration is in grad_scaler.cpp.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "torchamp/amp/grad_scaler.h"
#include "torchamp/amp/optimizer_state.h"
#include "torchamp/amp/scale_state.h"
#include "torchamp/amp/scaler_rules.h"
#include "torchamp/amp/step_history.h"

namespace torchamp::amp {
namespace {

int64_t count_at(const base::StateDict& state, const char* key) {
  const int64_t value = state.at(key).to_int(key);
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    throw base::CheckpointError(std::string(key) + " is " + std::to_string(value) +
                                "; 0 to 2147483647 is accepted.");
  }
  return value;
}

}  // namespace

void GradScaler::require_dynamic(const char* who) const {
  TORCH_CHECK_VALUE(!options_.enabled || options_.dynamic, "[", who,
                    "] The scaler is static, so its factors stay at 1; update(new_scale) moves its "
                    "scale. Make it with dynamic = true for a scale that moves by itself.");
}

double GradScaler::get_scale() const { return options_.enabled ? scale_->value() : 1.0; }

void GradScaler::set_growth_factor(double new_factor) {
  require_dynamic("set_growth_factor");
  const auto wrong = options_.enabled ? detail::wrong_growth_factor(new_factor) : std::string();
  TORCH_CHECK_VALUE(wrong.empty(), "[set_growth_factor] ", wrong);
  options_.growth_factor = new_factor;
}

void GradScaler::set_backoff_factor(double new_factor) {
  require_dynamic("set_backoff_factor");
  const auto wrong = options_.enabled ? detail::wrong_backoff_factor(new_factor) : std::string();
  TORCH_CHECK_VALUE(wrong.empty(), "[set_backoff_factor] ", wrong);
  options_.backoff_factor = new_factor;
}

void GradScaler::set_growth_interval(int64_t new_interval) {
  const auto wrong = options_.enabled ? detail::wrong_growth_interval(new_interval) : std::string();
  TORCH_CHECK_VALUE(wrong.empty(), "[set_growth_interval] ", wrong);
  options_.growth_interval = new_interval;
  scale_->growth_interval_changed();
}

base::StateDict GradScaler::state_dict() const {
  base::StateDict state;
  if (!options_.enabled) {
    return state;
  }
  const bool counts_overflows = options_.hysteresis > 1;
  const detail::ScaleNumbers numbers = scale_->numbers(counts_overflows);
  state.set("scale", numbers.scale);
  state.set("growth_factor", options_.growth_factor);
  state.set("backoff_factor", options_.backoff_factor);
  state.set("growth_interval", options_.growth_interval);
  state.set("_growth_tracker", numbers.growth_tracker);
  if (counts_overflows) {
    state.set("_overflow_run", numbers.overflow_run);
  }
  return state;
}

base::Loading GradScaler::prepare_load(const base::StateDict& state) {
  base::Loading loading;
  if (!options_.enabled) {
    loading.apply = [] {};
    return loading;
  }
  base::Differences& differences = loading.differences;
  if (state.empty()) {
    differences.add(
        "The source state dict is empty, possibly because it was saved from a disabled instance of "
        "GradScaler.");
    return loading;
  }
  detail::ScaleNumbers numbers;
  double growth_factor = 1.0;
  double backoff_factor = 1.0;
  int64_t growth_interval = 1;
  differences.attempt([&] { numbers.scale = state.at("scale").to_double("scale"); });
  differences.attempt([&] { numbers.growth_tracker = count_at(state, "_growth_tracker"); });
  differences.attempt([&] {
    numbers.overflow_run = state.contains("_overflow_run") ? count_at(state, "_overflow_run") : 0;
  });
  differences.attempt(
      [&] { growth_factor = state.at("growth_factor").to_double("growth_factor"); });
  differences.attempt(
      [&] { backoff_factor = state.at("backoff_factor").to_double("backoff_factor"); });
  differences.attempt(
      [&] { growth_interval = state.at("growth_interval").to_int("growth_interval"); });
  if (!differences.empty()) return loading;

  const auto accept = [&](const std::string& wrong) {
    if (!wrong.empty()) differences.add("The scaler's state cannot be used: " + wrong);
  };
  const bool is_static = growth_factor == 1.0 && backoff_factor == 1.0;
  accept(detail::wrong_scale(numbers.scale, options_));
  if (!is_static) {
    accept(detail::wrong_growth_factor(growth_factor));
    accept(detail::wrong_backoff_factor(backoff_factor));
  }
  accept(detail::wrong_growth_interval(growth_interval));
  loading.apply = [=, this] {
    scale_->load(numbers);
    min_scale_ = std::min(min_scale_, detail::floor_for(options_, numbers.scale));
    options_.dynamic = !is_static;
    options_.growth_factor = growth_factor;
    options_.backoff_factor = backoff_factor;
    options_.growth_interval = growth_interval;
    loaded_ = true;
  };
  return loading;
}

void GradScaler::load_state_dict(const base::StateDict& state) {
  base::take_over(prepare_load(state), "[load_state_dict] ", "");
}

int64_t GradScaler::applied_steps() const { return history_->applied(); }
int64_t GradScaler::skipped_steps() const { return history_->skipped(); }
int64_t GradScaler::consecutive_skips() const { return history_->consecutive_skips(); }
std::vector<SkippedStep> GradScaler::last_skips() const { return history_->last_skips(); }

ScalerHealth GradScaler::health() const {
  ScalerHealth health;
  health.scale = get_scale();
  health.iterations = history_->iterations();
  health.applied_steps = history_->applied();
  health.skipped_steps = history_->skipped();
  health.consecutive_skips = history_->consecutive_skips();
  if (!options_.enabled) {
    return health;
  }
  health.iterations_since_growth = scale_->iterations_since_growth();
  if (options_.warn_after_skips > 0 && health.consecutive_skips >= options_.warn_after_skips) {
    health.stall = ScalerHealth::Stall::kSkipping;
  } else if (!options_.dynamic) {
    return health;
  } else if (health.consecutive_skips > 0 && health.scale <= min_scale_) {
    health.stall = ScalerHealth::Stall::kAtFloor;
  } else if (options_.stall_after_intervals > 0 &&
             health.scale * options_.growth_factor <= options_.max_scale &&
             health.iterations_since_growth / options_.growth_interval >=
                 options_.stall_after_intervals) {
    health.stall = ScalerHealth::Stall::kNotGrowing;
  }
  return health;
}

base::StateDict GradScaler::history_state_dict() const {
  base::StateDict state = history_->state_dict();
  state.set("iterations_since_growth", options_.enabled ? scale_->iterations_since_growth() : 0);
  return state;
}

base::Loading GradScaler::prepare_history_load(const base::StateDict& state) {
  base::Loading loading;
  int64_t since_growth = 0;
  auto history = std::make_shared<detail::StepHistory>(options_.skip_history);
  loading.differences.attempt([&] { since_growth = count_at(state, "iterations_since_growth"); });
  loading.differences.attempt([&] { history->load_state_dict(state); });
  loading.apply = [this, since_growth, history] {
    *history_ = std::move(*history);
    scale_->set_iterations_since_growth(since_growth);
  };
  return loading;
}

void GradScaler::load_history_state_dict(const base::StateDict& state) {
  base::take_over(prepare_history_load(state), "[load_history_state_dict] ", "");
}

}  // namespace torchamp::amp
