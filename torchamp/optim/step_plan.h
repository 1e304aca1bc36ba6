#pragma once
// StepPlan: the parameters of one fused step as kernels take them, and what is to be put
// back afterwards. Internal to the optimizers.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/kernels/storage.h"
#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/optim/fused_options.h"
#include "torchamp/optim/master_weights.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::optim::detail {

/// One parameter that has a gradient.
struct PlanItem {
  size_t group = 0;
  size_t index = 0;
  at::Tensor parameter;
  at::Tensor gradient;
  std::shared_ptr<MasterWeight>
      master;  ///< of a 16-bit parameter with LowPrecisionWeights::kMaster
  /// Another parameter's gradient is the same memory, and the product is written there.
  bool shares_gradient = false;

  /// Real, dense memory of one order: the tensors themselves, or copies where their layout is
  /// another (finish() puts copies back).
  at::Tensor parameter_values;
  at::Tensor gradient_values;
  /// The gradient in its own memory order, for the norm: its order must not depend on the
  /// parameter's, since clip_grad_norm_() does not know it.
  at::Tensor measured_values;

  kernels::Stream parameter_stream;
  kernels::GradStream gradient_stream;  ///< of gradient_values; on a GPU without its factors
  /// On a GPU: factors that were noted for the gradient, undefined where there are none.
  at::Tensor factor, second_factor;
  bool has_factor = false;  ///< on a GPU: whether the gradient was multiplied
  int64_t count = 0;

  /// "parameter 3 of group 0, shape [10, 4]"
  std::string name() const;
};

class StepPlan {
 public:
  /// Every parameter of `optimizer` that has a gradient, once each: a parameter that is listed
  /// twice (tied weights in Module::parameters()) is one parameter.
  ///
  /// Sparse gradients are left out, in sparse(). Checks everything first.
  ///
  /// Errors: c10::ValueError beginning with "[who]" and naming the parameter.
  StepPlan(const torch::optim::Optimizer& optimizer, const FusedOptions& options, const char* who);

  std::vector<PlanItem>& items() { return items_; }
  const std::vector<PlanItem>& items() const { return items_; }
  const std::vector<PlanItem>& sparse() const { return sparse_; }
  std::vector<int64_t> counts() const;

  /// The gradients as they are measured, with the factors of gradient_stream.
  std::vector<multi_tensor::GradArray> measured() const;

  /// Puts copies back and raises the versions of what was written. `wrote_parameters` is false
  /// after a skipped step.
  void finish(bool wrote_parameters, bool consume_gradients);

 private:
  std::vector<PlanItem> items_;
  std::vector<PlanItem> sparse_;
};

/// Raises the version of a tensor that a kernel wrote to, so that autograd and the cast cache see
/// it.
void bump_version(const at::Tensor& tensor);

/// The real view of a complex tensor, the tensor itself else.
at::Tensor real_values(const at::Tensor& tensor);

/// Whether `state` lies in memory as the parameter's values do.
bool has_order_of_values(const at::Tensor& state, const PlanItem& item);

/// `state`, or a copy of it where its memory order is not that of the parameter's values, as after
/// loading a state that was saved in another layout.
at::Tensor in_order_of(const at::Tensor& state, const PlanItem& item);

}  // namespace torchamp::optim::detail
