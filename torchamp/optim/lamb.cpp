#include "torchamp/optim/lamb.h"

#include <cmath>
#include <memory>
#include <tuple>
#include <utility>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <torch/optim/serialize.h>

#include "torchamp/optim/closure.h"
#include "torchamp/optim/device_step.h"
#include "torchamp/optim/moments.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim {
namespace {

using torch::optim::AdamWParamState;

void check(const LAMBOptions& options) {
  TORCH_CHECK_VALUE(options.lr() >= 0.0, "[LAMB] lr is ", options.lr(),
                    "; a number >= 0 is accepted.");
  TORCH_CHECK_VALUE(options.eps() >= 0.0, "[LAMB] eps is ", options.eps(),
                    "; a number >= 0 is accepted.");
  for (const double beta : {std::get<0>(options.betas()), std::get<1>(options.betas())}) {
    TORCH_CHECK_VALUE(beta >= 0.0 && beta < 1.0, "[LAMB] a beta is ", beta,
                      "; 0 to below 1 is accepted.");
  }
  TORCH_CHECK_VALUE(options.weight_decay() >= 0.0, "[LAMB] weight_decay is ",
                    options.weight_decay(), "; a number >= 0 is accepted.");
}

kernels::LambRule rule_of(const LAMBOptions& options, int64_t step) {
  const auto [beta1, beta2] = options.betas();
  return kernels::lamb_rule(beta1, beta2, options.eps(), options.weight_decay(), step);
}

double trust_ratio(double weight_squares, double direction_squares) {
  return weight_squares > 0.0 && direction_squares > 0.0
             ? std::sqrt(weight_squares) / std::sqrt(direction_squares)
             : 1.0;
}

}  // namespace

LAMBOptions::LAMBOptions(double lr) : lr_(lr) {}

void LAMBOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(betas);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
}

void LAMBOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(betas_t, betas);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
}

LAMB::LAMB(std::vector<at::Tensor> parameters, const LAMBOptions& defaults,
           const FusedOptions& fused)
    : LAMB({torch::optim::OptimizerParamGroup(std::move(parameters))}, defaults, fused) {}

LAMB::LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups,
           const LAMBOptions& defaults, const FusedOptions& fused)
    : Optimizer(groups, std::make_unique<LAMBOptions>(defaults)), FusedOptimizer(fused) {
  check(defaults);
  claim_factors();
}

at::Tensor LAMB::step(LossClosure closure) {
  at::Tensor loss = detail::evaluate(closure);
  plain_step();
  return loss;
}

void LAMB::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  Optimizer::add_param_group(group);
  claim_factors();
}

void LAMB::save(torch::serialize::OutputArchive& archive) const {
  refuse_archive();
  const_cast<LAMB*>(this)->sync_state();
  torch::optim::serialize<AdamWParamState, LAMBOptions>(archive, *this);
}

void LAMB::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdamWParamState, LAMBOptions>(archive, *this);
}

detail::DeviceList LAMB::describe(detail::StepPlan& plan) {
  detail::DeviceList list;
  list.method = kernels::cuda::Method::kLamb;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const LAMBOptions&>(group.options());
    kernels::cuda::Numbers numbers;
    numbers.lr = options.lr();
    std::tie(numbers.beta1, numbers.beta2) = options.betas();
    numbers.eps = options.eps();
    numbers.weight_decay = options.weight_decay();
    numbers.seed = fused_options().seed;
    list.groups.push_back(numbers);
  }
  for (const detail::PlanItem& item : plan.items()) {
    auto& slot = state()[item.parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<AdamWParamState>();
    auto& state = static_cast<AdamWParamState&>(*slot);
    detail::MomentArrays moments(item, fused_options(), scales(), 0);
    detail::DeviceItem described;
    described.param = moments.parameter();
    described.state[0] = moments.signed_moment(state.exp_avg(), 0);
    described.state[1] = moments.positive_moment(state.exp_avg_sq(), 1);
    described.moment = state.exp_avg();
    described.applied_steps = state.step();
    described.on_host = &state.step();
    list.items.push_back(described);
    detail::bump_version(state.exp_avg());
    detail::bump_version(state.exp_avg_sq());
  }
  return list;
}

void LAMB::set_applied_steps(c10::TensorImpl* parameter, int64_t steps) {
  const auto it = state().find(parameter);
  if (it != state().end()) static_cast<AdamWParamState&>(*it->second).step(steps);
}

void LAMB::update(detail::StepPlan& plan) {
  const kernels::KernelTable& table = multi_tensor::cpu_kernels();
  std::vector<kernels::LambRule> rules;
  std::vector<kernels::LambArrays> arrays;
  std::vector<AdamWParamState*> states;
  std::vector<double> steps;
  for (const detail::PlanItem& item : plan.items()) {
    const auto& options = static_cast<const LAMBOptions&>(param_groups()[item.group].options());
    auto& slot = state()[item.parameter.unsafeGetTensorImpl()];
    if (!slot) slot = std::make_unique<AdamWParamState>();
    auto& state = static_cast<AdamWParamState&>(*slot);
    detail::MomentArrays moments(item, fused_options(), scales(), state.step());
    kernels::LambArrays array;
    array.grad = item.gradient_stream;
    array.param = moments.parameter();
    array.exp_avg = moments.signed_moment(state.exp_avg(), 0);
    array.exp_avg_sq = moments.positive_moment(state.exp_avg_sq(), 1);
    rules.push_back(rule_of(options, state.step() + 1));
    arrays.push_back(array);
    states.push_back(&state);
    steps.push_back(options.lr());
  }
  const std::vector<int64_t> counts = plan.counts();
  std::vector<std::vector<kernels::LambNorms>> norms;
  for (const int64_t count : counts) norms.emplace_back(multi_tensor::num_ranges(count));
  multi_tensor::for_each_range(counts, [&](size_t i, kernels::Range range) {
    norms[i][multi_tensor::range_number(range)] = table.lamb_moments(rules[i], arrays[i], range);
  });
  for (size_t i = 0; i < norms.size(); ++i) {
    kernels::LambNorms total;
    for (const kernels::LambNorms& each : norms[i]) {
      total.weight += each.weight;
      total.direction += each.direction;
    }
    steps[i] *= trust_ratio(total.weight, total.direction);
  }
  multi_tensor::for_each_range(counts, [&](size_t i, kernels::Range range) {
    table.lamb_apply(rules[i], arrays[i], steps[i], range);
  });
  for (AdamWParamState* state : states) {
    state->step(state->step() + 1);
    detail::bump_version(state->exp_avg());
    detail::bump_version(state->exp_avg_sq());
  }
}

void LAMB::step_by_operators() {
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const LAMBOptions&>(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.defined() || !parameter.grad().defined()) continue;
      TORCH_CHECK_VALUE(!parameter.grad().is_sparse() && !parameter.is_complex(),
                        "[LAMB] A gradient of shape ", parameter.sizes(),
                        " is sparse or complex; a dense real one is accepted.");
      auto& slot = state()[parameter.unsafeGetTensorImpl()];
      if (!slot) slot = std::make_unique<AdamWParamState>();
      auto& state = static_cast<AdamWParamState&>(*slot);
      if (!state.exp_avg().defined()) {
        state.exp_avg(at::zeros_like(parameter));
        state.exp_avg_sq(at::zeros_like(parameter));
      }
      state.step(state.step() + 1);
      const kernels::LambRule rule = rule_of(options, state.step());
      const at::Tensor& gradient = parameter.grad();
      state.exp_avg().lerp_(gradient, rule.one_minus_beta1);
      state.exp_avg_sq().mul_(rule.beta2).addcmul_(gradient, gradient, rule.one_minus_beta2);
      const at::Tensor denominator =
          (state.exp_avg_sq().sqrt() / rule.root_bias_correction2).add_(rule.eps);
      const at::Tensor direction = (state.exp_avg() * rule.inverse_bias_correction1)
                                       .div_(denominator)
                                       .add_(parameter, rule.weight_decay);
      const at::Tensor weight_norm = at::linalg_vector_norm(parameter);
      const at::Tensor direction_norm = at::linalg_vector_norm(direction);
      const at::Tensor ratio = at::where(weight_norm.gt(0).logical_and(direction_norm.gt(0)),
                                         weight_norm / direction_norm, at::ones_like(weight_norm));
      parameter.addcmul_(direction, ratio, -options.lr());
    }
  }
}

}  // namespace torchamp::optim
