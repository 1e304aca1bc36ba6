#include "torchamp/optim/sgd.h"

#include <memory>
#include <utility>

#include "torchamp/optim/closure.h"
#include "torchamp/optim/device_step.h"
#include "torchamp/optim/moments.h"
#include "torchamp/optim/step_plan.h"

namespace torchamp::optim {

using torch::optim::SGDParamState;

SGD::SGD(std::vector<at::Tensor> parameters, SGDOptions defaults, const FusedOptions& fused)
    : torch::optim::SGD(std::move(parameters), std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

SGD::SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults,
         const FusedOptions& fused)
    : torch::optim::SGD(groups, std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

at::Tensor SGD::step(LossClosure closure) {
  at::Tensor loss = detail::evaluate(closure);
  plain_step();
  return loss;
}

bool SGD::takes_sparse() const {
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    if (options.momentum() != 0.0 || options.weight_decay() != 0.0) return false;
  }
  return true;
}

void SGD::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::SGD::add_param_group(group);
  claim_factors();
}

bool SGD::rounds_by_chance() const {
  return fused_options().moments != Moments::kFloat32 ||
         fused_options().low_precision_weights == LowPrecisionWeights::kStochastic;
}

void SGD::save(torch::serialize::OutputArchive& archive) const {
  refuse_archive();
  const_cast<SGD*>(this)->sync_state();
  torch::optim::SGD::save(archive);
}

detail::DeviceList SGD::describe(detail::StepPlan& plan) {
  detail::DeviceList list;
  list.method = kernels::cuda::Method::kSgd;
  for (const auto& group : param_groups()) {
    const auto& options = static_cast<const SGDOptions&>(group.options());
    kernels::cuda::Numbers numbers;
    numbers.lr = options.lr();
    numbers.weight_decay = options.weight_decay();
    numbers.momentum = options.momentum();
    numbers.dampening = options.dampening();
    numbers.nesterov = options.nesterov();
    numbers.seed = fused_options().seed;
    list.groups.push_back(numbers);
  }
  for (const detail::PlanItem& item : plan.items()) {
    detail::MomentArrays moments(item, fused_options(), scales(), 0);
    detail::DeviceItem described;
    described.param = moments.parameter();
    if (list.groups[item.group].momentum != 0.0) {
      auto& slot = state()[item.parameter.unsafeGetTensorImpl()];
      if (!slot) slot = std::make_unique<SGDParamState>();
      auto& state = static_cast<SGDParamState&>(*slot);
      // Zeros until the first step that is applied: the device knows which that is.
      described.applied_steps = state.momentum_buffer().defined() ? 1 : 0;
      described.state[0] = moments.signed_moment(state.momentum_buffer(), 0);
      described.moment = state.momentum_buffer();
      detail::bump_version(described.moment);
    }
    list.items.push_back(described);
  }
  return list;
}

void SGD::set_applied_steps(c10::TensorImpl* parameter, int64_t steps) {
  const auto it = state().find(parameter);
  if (it == state().end() || steps > 0) return;
  static_cast<SGDParamState&>(*it->second).momentum_buffer(at::Tensor());  // no step so far
}

void SGD::update(detail::StepPlan& plan) {
  const kernels::KernelTable& table = multi_tensor::cpu_kernels();
  std::vector<kernels::SgdRule> rules;
  std::vector<kernels::SgdArrays> arrays;
  std::vector<SGDParamState*> states;
  std::vector<at::Tensor> buffers;
  for (const detail::PlanItem& item : plan.items()) {
    const auto& options = static_cast<const SGDOptions&>(param_groups()[item.group].options());
    kernels::SgdRule rule;
    rule.weight_decay = options.weight_decay();
    rule.momentum = options.momentum();
    rule.one_minus_dampening = 1.0 - options.dampening();
    rule.minus_lr = -options.lr();
    rule.nesterov = options.nesterov();
    rule.rounds_products = item.parameter.is_complex();
    auto& slot = state()[item.parameter.unsafeGetTensorImpl()];
    detail::MomentArrays moments(item, fused_options(), scales(), num_steps_);
    kernels::SgdArrays array;
    array.grad = item.gradient_stream;
    array.param = moments.parameter();
    if (rule.momentum != 0.0) {
      if (!slot) slot = std::make_unique<SGDParamState>();
      auto& state = static_cast<SGDParamState&>(*slot);
      rule.is_first = !state.momentum_buffer().defined();
      buffers.push_back(state.momentum_buffer());  // put into the state when the step has run
      array.momentum_buffer = moments.signed_moment(buffers.back(), 0);
      states.push_back(&state);
    } else if (!slot) {
      state().erase(item.parameter.unsafeGetTensorImpl());
    }
    rules.push_back(rule);
    arrays.push_back(array);
  }
  multi_tensor::for_each_range(plan.counts(), [&](size_t i, kernels::Range range) {
    table.sgd(rules[i], arrays[i], range);
  });
  for (size_t i = 0; i < states.size(); ++i) {
    states[i]->momentum_buffer(buffers[i]);
    detail::bump_version(buffers[i]);
  }
  ++num_steps_;
}

}  // namespace torchamp::optim
