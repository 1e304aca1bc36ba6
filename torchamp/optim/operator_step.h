#pragma once
// OperatorStep: 16-bit parameters as LibTorch's own step functions must see them to be exact.
// Internal to the optimizers, for what no kernel of ours takes.

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/optim/fused_options.h"
#include "torchamp/optim/master_weights.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::optim::detail {

/// While it lives, parameters with a master are float32 with the exact value, and 16-bit gradients
/// whose factors wait for the optimizer are float32 products. finish() takes the new values over;
/// without it, as when the step threw, everything is as before.
class OperatorStep {
 public:
  OperatorStep(const torch::optim::Optimizer& optimizer, const FusedOptions& options);
  ~OperatorStep();
  OperatorStep(const OperatorStep&) = delete;
  OperatorStep& operator=(const OperatorStep&) = delete;

  void finish();

 private:
  struct Changed {
    at::Tensor parameter;
    at::Tensor gradient;                   // 16-bit; undefined where it was not exchanged
    at::Tensor weight;                     // 16-bit; undefined without a master
    std::shared_ptr<MasterWeight> master;  // of the weight
  };

  OperatorStep() = default;
  void put_back(const Changed& changed) const;

  std::vector<Changed> changed_;
};

}  // namespace torchamp::optim::detail
