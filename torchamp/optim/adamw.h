#pragma once
// AdamW and Adam with a fused step.

#include <vector>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include "torchamp/base/export.h"
#include "torchamp/optim/fused_optimizer.h"

namespace torchamp::optim {

using AdamWOptions = torch::optim::AdamWOptions;
using AdamOptions = torch::optim::AdamOptions;

/// torch::optim::AdamW whose step is one pass over parameters, moments and gradients.
///
/// It is a torch::optim::AdamW: options, groups, states, schedulers and archives are the same.
///
/// Numbers: the bits of Python's torch.optim.AdamW(foreach=False) on a CPU with fused multiply-add
///          for f32 and f64 parameters (FusedOptions::roots). LibTorch's C++ AdamW orders its
///          arithmetic differently.
/// Source:  Loshchilov and Hutter 2019; PyTorch torch/optim/adam.py.
/// Example: examples/fused_optimizer.cpp
class TORCHAMP_API AdamW : public torch::optim::AdamW, public FusedOptimizer {
 public:
  explicit AdamW(std::vector<at::Tensor> parameters, AdamWOptions defaults = {},
                 const FusedOptions& fused = {});
  explicit AdamW(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 AdamWOptions defaults = {}, const FusedOptions& fused = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

 private:
  torch::optim::Optimizer& optimizer() override { return *this; }
  const char* name() const override { return "AdamW"; }
  void update(detail::StepPlan& plan) override;
  detail::DeviceList describe(detail::StepPlan& plan) override;
  void set_applied_steps(c10::TensorImpl* parameter, int64_t steps) override;
  void step_by_operators() override { torch::optim::AdamW::step(); }
};

/// torch::optim::Adam whose step is one pass, as AdamW's.
///
/// Numbers: the bits of Python's torch.optim.Adam(foreach=False), as AdamW's.
/// Source:  Kingma and Ba 2015; Reddi et al. 2018 (amsgrad); PyTorch torch/optim/adam.py.
class TORCHAMP_API Adam : public torch::optim::Adam, public FusedOptimizer {
 public:
  explicit Adam(std::vector<at::Tensor> parameters, AdamOptions defaults = {},
                const FusedOptions& fused = {});
  explicit Adam(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                AdamOptions defaults = {}, const FusedOptions& fused = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

 private:
  torch::optim::Optimizer& optimizer() override { return *this; }
  const char* name() const override { return "Adam"; }
  void update(detail::StepPlan& plan) override;
  detail::DeviceList describe(detail::StepPlan& plan) override;
  void set_applied_steps(c10::TensorImpl* parameter, int64_t steps) override;
  void step_by_operators() override { torch::optim::Adam::step(); }
};

}  // namespace torchamp::optim
