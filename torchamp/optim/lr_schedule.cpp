#include "torchamp/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <string>

#include <torch/optim/optimizer.h>

#include "torchamp/base/error.h"

namespace torchamp::optim {
namespace {

void check(const WarmupCosineOptions& options) {
  if (options.warmup_steps < 0) {
    throw base::UsageError("[WarmupCosine] warmup_steps is " +
                           std::to_string(options.warmup_steps) + "; 0 or more is accepted.");
  }
  if (options.total_steps != 0 && options.total_steps <= options.warmup_steps) {
    throw base::UsageError("[WarmupCosine] total_steps is " + std::to_string(options.total_steps) +
                           ", but the warm-up alone takes " + std::to_string(options.warmup_steps) +
                           "; a total above the warm-up is accepted, or 0 for no cosine.");
  }
  if (!(options.min_factor >= 0.0 && options.min_factor <= 1.0)) {
    throw base::UsageError("[WarmupCosine] min_factor is " + std::to_string(options.min_factor) +
                           "; 0 to 1 is accepted.");
  }
}

}  // namespace

double warmup_cosine_factor(int64_t step, const WarmupCosineOptions& options) {
  const int64_t warmup = options.warmup_steps;
  if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (options.total_steps == 0) return 1.0;
  const double progress = std::min(
      1.0, static_cast<double>(step - warmup) / static_cast<double>(options.total_steps - warmup));
  return options.min_factor +
         (1.0 - options.min_factor) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

WarmupCosine::WarmupCosine(torch::optim::Optimizer& optimizer, WarmupCosineOptions options)
    : optimizer_(&optimizer), options_(options) {
  check(options_);
  for (const auto& group : optimizer.param_groups()) {
    base_lrs_.push_back(group.options().get_lr());
  }
  apply();
}

void WarmupCosine::step() {
  ++step_;
  apply();
}

double WarmupCosine::lr() const { return optimizer_->param_groups().front().options().get_lr(); }

base::StateDict WarmupCosine::state_dict() const {
  base::List base_lrs;
  for (const double lr : base_lrs_) base_lrs.items.emplace_back(lr);
  base::StateDict state;
  state.set("last_step", step_);
  state.set("base_lrs", std::move(base_lrs));
  return state;
}

base::Loading WarmupCosine::prepare_load(const base::StateDict& state) {
  base::Loading loading;
  int64_t step = 0;
  loading.differences.attempt([&] {
    step = state.at("last_step").to_int("last_step");
    if (step < 0) {
      throw base::CheckpointError("last_step is " + std::to_string(step) +
                                  ", 0 or more is expected");
    }
  });
  // This run's own rule, but numbers that no schedule can have had tell of a damaged file.
  loading.differences.attempt([&] {
    const base::Value* saved = state.find("base_lrs");
    if (saved == nullptr) return;
    const std::vector<base::Value>& rates = saved->to_items("base_lrs");
    for (size_t i = 0; i < rates.size(); ++i) {
      const std::string name = "base_lrs[" + std::to_string(i) + "]";
      const double rate = rates[i].to_double(name);
      if (rate >= 0.0 && std::isfinite(rate)) continue;
      std::ostringstream text;
      text << name << " is " << rate << ", a finite number from 0 is expected";
      throw base::CheckpointError(text.str());
    }
  });
  loading.apply = [this, step] { set_last_step(step); };
  return loading;
}

void WarmupCosine::load_state_dict(const base::StateDict& state) {
  base::take_over(prepare_load(state), "[WarmupCosine] ", ". Is the checkpoint damaged?");
}

void WarmupCosine::set_last_step(int64_t step) {
  step_ = step;
  apply();
}

void WarmupCosine::apply() {
  const double factor = warmup_cosine_factor(step_, options_);
  auto& groups = optimizer_->param_groups();
  for (size_t i = 0; i < groups.size() && i < base_lrs_.size(); ++i) {
    groups[i].options().set_lr(base_lrs_[i] * factor);
  }
}

}  // namespace torchamp::optim
