#pragma once
// SGD with a fused step.

#include <vector>

#include <torch/optim/sgd.h>

#include "torchamp/base/export.h"
#include "torchamp/optim/fused_optimizer.h"

namespace torchamp::optim {

using SGDOptions = torch::optim::SGDOptions;

/// torch::optim::SGD (momentum, dampening, nesterov, weight decay) whose step is one pass.
///
/// The first *applied* step takes the gradient into the momentum buffer as it is; a skipped one
/// makes no buffer. Sparse gradients need momentum and weight decay 0; each index is updated alone.
///
/// Numbers: the bits of Python's torch.optim.SGD(foreach=False) on a CPU with fused multiply-add
/// for
///          f32 and f64 parameters.
/// Source:  Sutskever et al. 2013; PyTorch torch/optim/sgd.py.
class TORCHAMP_API SGD : public torch::optim::SGD, public FusedOptimizer {
 public:
  explicit SGD(std::vector<at::Tensor> parameters, SGDOptions defaults,
               const FusedOptions& fused = {});
  explicit SGD(const std::vector<torch::optim::OptimizerParamGroup>& groups, SGDOptions defaults,
               const FusedOptions& fused = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);

  /// Whether momentum buffers or weights are rounded by chance, so that a step depends on its
  /// number; a checkpoint then has it ("num_steps" of each group).
  bool rounds_by_chance() const;
  /// Applied steps of this object.
  int64_t num_steps() const { return num_steps_; }
  void set_num_steps(int64_t num_steps) { num_steps_ = num_steps; }

 private:
  torch::optim::Optimizer& optimizer() override { return *this; }
  const char* name() const override { return "SGD"; }
  void update(detail::StepPlan& plan) override;
  detail::DeviceList describe(detail::StepPlan& plan) override;
  void set_applied_steps(c10::TensorImpl* parameter, int64_t steps) override;
  void step_by_operators() override { torch::optim::SGD::step(); }
  bool takes_sparse() const override;

  int64_t num_steps_ = 0;
};

}  // namespace torchamp::optim
