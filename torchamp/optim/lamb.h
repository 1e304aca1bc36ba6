#pragma once
// LAMB with a fused step: for large batches, a step length for each tensor.

#include <tuple>
#include <vector>

#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include "torchamp/base/export.h"
#include "torchamp/optim/fused_optimizer.h"

namespace torchamp::optim {

/// Settings of one parameter group.
struct TORCHAMP_API LAMBOptions : public torch::optim::OptimizerCloneableOptions<LAMBOptions> {
  LAMBOptions(double lr = 1e-3);  // NOLINT: LibTorch's options convert from the rate, too
  TORCH_ARG(double, lr) = 1e-3;
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 1e-2;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override { return lr(); }
  void set_lr(double value) override { lr(value); }
};

/// Layer-wise adaptive moments:
///   m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g g
///   u = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + weight_decay * p
///   p <- p - lr * (|p| / |u|) * u,  the ratio being 1 where one of the norms is 0
///
/// States: torch::optim::AdamWParamState (step, exp_avg, exp_avg_sq).
/// Numbers: norms are summed in double in one order for every number of threads.
/// Source:  You et al. 2020, "Large Batch Optimization for Deep Learning", algorithm 2 with the
/// bias
///          correction of its section 3; phi is the identity.
class TORCHAMP_API LAMB : public torch::optim::Optimizer, public FusedOptimizer {
 public:
  /// Errors: c10::ValueError naming an option that is out of its range.
  explicit LAMB(std::vector<at::Tensor> parameters, const LAMBOptions& defaults = {},
                const FusedOptions& fused = {});
  explicit LAMB(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const LAMBOptions& defaults = {}, const FusedOptions& fused = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  torch::optim::Optimizer& optimizer() override { return *this; }
  const char* name() const override { return "LAMB"; }
  void update(detail::StepPlan& plan) override;
  detail::DeviceList describe(detail::StepPlan& plan) override;
  void set_applied_steps(c10::TensorImpl* parameter, int64_t steps) override;
  void step_by_operators() override;
};

}  // namespace torchamp::optim
