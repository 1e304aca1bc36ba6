#include "torchamp/optim/adamw.h"

#include <utility>

#include "torchamp/optim/adam_update.h"
#include "torchamp/optim/closure.h"

namespace torchamp::optim {

AdamW::AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults, const FusedOptions& fused)
    : torch::optim::AdamW(std::move(parameters), std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

AdamW::AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamWOptions defaults,
             const FusedOptions& fused)
    : torch::optim::AdamW(groups, std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss = detail::evaluate(closure);
  plain_step();
  return loss;
}

void AdamW::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::AdamW::add_param_group(group);
  claim_factors();
}

void AdamW::save(torch::serialize::OutputArchive& archive) const {
  refuse_archive();
  const_cast<AdamW*>(this)->sync_state();
  torch::optim::AdamW::save(archive);
}

detail::DeviceList AdamW::describe(detail::StepPlan& plan) {
  return detail::adam_on_device<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      *this, plan, fused_options(), scales(), /*decoupled=*/true);
}

void AdamW::set_applied_steps(c10::TensorImpl* parameter, int64_t steps) {
  detail::set_steps<torch::optim::AdamWParamState>(*this, parameter, steps);
}

void AdamW::update(detail::StepPlan& plan) {
  detail::adam_update<torch::optim::AdamWOptions, torch::optim::AdamWParamState>(
      *this, plan, fused_options(), scales(), /*decoupled=*/true);
}

Adam::Adam(std::vector<at::Tensor> parameters, AdamOptions defaults, const FusedOptions& fused)
    : torch::optim::Adam(std::move(parameters), std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

Adam::Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups, AdamOptions defaults,
           const FusedOptions& fused)
    : torch::optim::Adam(groups, std::move(defaults)), FusedOptimizer(fused) {
  claim_factors();
}

at::Tensor Adam::step(LossClosure closure) {
  at::Tensor loss = detail::evaluate(closure);
  plain_step();
  return loss;
}

void Adam::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  torch::optim::Adam::add_param_group(group);
  claim_factors();
}

void Adam::save(torch::serialize::OutputArchive& archive) const {
  refuse_archive();
  const_cast<Adam*>(this)->sync_state();
  torch::optim::Adam::save(archive);
}

detail::DeviceList Adam::describe(detail::StepPlan& plan) {
  return detail::adam_on_device<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      *this, plan, fused_options(), scales(), /*decoupled=*/false);
}

void Adam::set_applied_steps(c10::TensorImpl* parameter, int64_t steps) {
  detail::set_steps<torch::optim::AdamParamState>(*this, parameter, steps);
}

void Adam::update(detail::StepPlan& plan) {
  detail::adam_update<torch::optim::AdamOptions, torch::optim::AdamParamState>(
      *this, plan, fused_options(), scales(), /*decoupled=*/false);
}

}  // namespace torchamp::optim
