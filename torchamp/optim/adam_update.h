#pragma once
// The update that Adam and AdamW share. Internal to both.

#include <memory>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include "torchamp/optim/device_step.h"
#include "torchamp/optim/moments.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim::detail {

/// Updates the plan's items; `Options` and `State` are those of torch::optim::Adam or AdamW.
template <typename Options, typename State>
void adam_update(torch::optim::Optimizer& optimizer, StepPlan& plan, const FusedOptions& fused,
                 MomentScales& scales, bool decoupled) {
  const kernels::KernelTable& table = multi_tensor::cpu_kernels();
  std::vector<kernels::AdamRule> rules;
  std::vector<kernels::AdamArrays> arrays;
  std::vector<State*> states;
  rules.reserve(plan.items().size());
  arrays.reserve(plan.items().size());
  states.reserve(plan.items().size());
  for (const PlanItem& item : plan.items()) {
    const auto& options =
        static_cast<const Options&>(optimizer.param_groups()[item.group].options());
    auto& slot = optimizer.state()[item.parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    auto& state = static_cast<State&>(*slot);
    MomentArrays moments(item, fused, scales, state.step());
    kernels::AdamArrays array;
    array.grad = item.gradient_stream;
    array.param = moments.parameter();
    array.exp_avg = moments.signed_moment(state.exp_avg(), 0);
    array.exp_avg_sq = moments.positive_moment(state.exp_avg_sq(), 1);
    if (options.amsgrad()) {
      array.max_exp_avg_sq = moments.positive_moment(state.max_exp_avg_sq(), 2);
    }
    if (fused.roots == Roots::kLibTorch) array.roots = multi_tensor::libtorch_roots();
    const auto [beta1, beta2] = options.betas();
    rules.push_back(kernels::adam_rule(options.lr(), beta1, beta2, options.eps(),
                                       options.weight_decay(), decoupled, options.amsgrad(),
                                       state.step() + 1));
    rules.back().rounds_products = item.parameter.is_complex();
    arrays.push_back(array);
    states.push_back(&state);
  }
  multi_tensor::for_each_range(plan.counts(), [&](size_t i, kernels::Range range) {
    table.adam(rules[i], arrays[i], range);
  });
  for (State* state : states) {
    state->step(state->step() + 1);
    bump_version(state->exp_avg());
    bump_version(state->exp_avg_sq());
    if (state->max_exp_avg_sq().defined()) bump_version(state->max_exp_avg_sq());
  }
}

/// The same for the kernels of a GPU.
template <typename Options, typename State>
DeviceList adam_on_device(torch::optim::Optimizer& optimizer, StepPlan& plan,
                          const FusedOptions& fused, MomentScales& scales, bool decoupled) {
  DeviceList list;
  list.method = kernels::cuda::Method::kAdam;
  for (const auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    kernels::cuda::Numbers numbers;
    numbers.lr = options.lr();
    std::tie(numbers.beta1, numbers.beta2) = options.betas();
    numbers.eps = options.eps();
    numbers.weight_decay = options.weight_decay();
    numbers.seed = fused.seed;
    numbers.decoupled = decoupled;
    numbers.amsgrad = options.amsgrad();
    list.groups.push_back(numbers);
  }
  for (const PlanItem& item : plan.items()) {
    auto& slot = optimizer.state()[item.parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<State>();
    auto& state = static_cast<State&>(*slot);
    MomentArrays moments(item, fused, scales, 0);
    DeviceItem described;
    described.param = moments.parameter();
    described.state[0] = moments.signed_moment(state.exp_avg(), 0);
    described.state[1] = moments.positive_moment(state.exp_avg_sq(), 1);
    if (list.groups[item.group].amsgrad) {
      described.state[2] = moments.positive_moment(state.max_exp_avg_sq(), 2);
      bump_version(state.max_exp_avg_sq());
    }
    described.moment = state.exp_avg();
    described.applied_steps = state.step();
    described.on_host = &state.step();
    list.items.push_back(described);
    bump_version(state.exp_avg());
    bump_version(state.exp_avg_sq());
  }
  return list;
}

/// Sets the count of applied steps of a parameter that has a state.
template <typename State>
void set_steps(torch::optim::Optimizer& optimizer, c10::TensorImpl* parameter, int64_t steps) {
  const auto it = optimizer.state().find(parameter);
  if (it != optimizer.state().end()) static_cast<State&>(*it->second).step(steps);
}

}  // namespace torchamp::optim::detail
