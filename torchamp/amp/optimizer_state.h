#pragma once
// What a GradScaler remembers about one optimizer during one iteration, and the gradients that an
// optimizer holds now. Internal to GradScaler.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torchamp/multi_tensor/unscale.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::amp::detail {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A gradient as an optimizer sees it now.
struct Gradient {
  at::Tensor parameter;
  at::Tensor gradient;
  at::Tensor values;  // the dense real memory behind it
  size_t group = 0;
  size_t index = 0;
  /// Whether the optimizer multiplies this 16-bit gradient itself: factors are noted for it.
  bool takes_factors = false;
  /// Where the optimizer lists the parameter again, "parameter 1 of group 0"; empty when nowhere.
  std::string listed_again;

  /// "parameter 3 of group 0, shape [10, 4]"
  std::string name() const;
};

/// The defined gradients of `optimizer` in order of its parameters, each once: a parameter that is
/// listed twice and two parameters that share one gradient count once.
///
/// Errors: c10::ValueError naming `who` and the parameter for a gradient that cannot be unscaled.
///
/// float16 gradients are refused, since dividing them would flush small values, except of
/// parameters whose optimizer applies the factor itself; with `takes_half` they all are taken.
std::vector<Gradient> gradients_of(const torch::optim::Optimizer& optimizer, const char* who,
                                   bool takes_half = false);

std::vector<at::Tensor> values_of(const std::vector<Gradient>& gradients);

/// Of each sparse gradient that is not coalesced, the sums of the values with equal indices: what
/// the optimizer will see. On CUDA coalescing waits for the device, as the optimizer's own does.
std::vector<at::Tensor> coalesced_sums(const std::vector<Gradient>& gradients);

/// A gradient that has been unscaled. The weak reference keeps its address from being used again.
struct UnscaledGradient {
  WeakTensor parameter;
  WeakTensor gradient;
  int64_t version = 0;
};

enum class Stage { kReady, kUnscaled, kStepped };

class OptimizerState {
 public:
  explicit OptimizerState(const torch::optim::Optimizer& optimizer);

  /// Whether `optimizer` is the one this was made for: the same address, and its parameters begin
  /// with those it had (groups may have been added). An optimizer that took the place of a
  /// destroyed one is told apart by its parameters.
  bool is_of(const torch::optim::Optimizer& optimizer) const;

  /// Notes that `gradient` holds unscaled values as it stands.
  void note_unscaled(const Gradient& gradient);
  /// Whether a gradient of this parameter was unscaled through this optimizer.
  bool has_unscaled(const Gradient& gradient) const;
  /// What has become of a gradient of this parameter that was unscaled.
  enum class Change { kNone, kWritten, kReplaced };
  Change change_of(const Gradient& gradient) const;
  /// Whether exactly this gradient holds unscaled values through this optimizer. One that was
  /// written to since counts as such until the optimizer has stepped or `scaled_since` says that a
  /// loss was scaled in between: clipping writes too.
  bool owns_unscaled(const Gradient& gradient, bool scaled_since) const;
  /// After the optimizer's step: what it wrote to its gradients left them unscaled.
  void note_stepped();

  Stage stage = Stage::kReady;
  multi_tensor::NonFiniteFlags found;
  /// 0-dim bool, when the reason of a skip is already known.
  at::Tensor has_nan;
  /// Whether the host knows that every gradient was finite: the optimizer has stepped.
  bool is_known_good = false;
  /// The scaler's count of scale() calls when this optimizer was unscaled.
  int64_t unscaled_at = 0;

 private:
  const torch::optim::Optimizer* address_;
  std::vector<WeakTensor> parameters_;
  std::unordered_map<const void*, UnscaledGradient> unscaled_;  // by parameter
};

}  // namespace torchamp::amp::detail
