#pragma once
// ScaledStep: what an optimizer implements that checks, unscales, clips and updates in one pass.
// GradScaler hands it the scale instead of unscaling the gradients itself.

#include <unordered_set>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::amp {

/// The interface that GradScaler looks for in an optimizer.
class TORCHAMP_API ScaledStep {
 public:
  struct Scale {
    /// What gradients are multiplied with: float32, one element, any device.
    at::Tensor inverse;
    /// Where gradients begin in memory that hold no scale any more: the factor is 1 for them.
    const std::unordered_set<const void*>& unscaled;
    /// Something else was not finite already: the step is to be skipped. May be undefined.
    at::Tensor found_inf;
  };

  struct Result {
    at::Tensor found_inf;  ///< float32, 0-dim: 0 when the step was applied
    at::Tensor has_nan;    ///< bool, 0-dim; undefined where nobody knows yet
  };

  virtual ~ScaledStep() = default;

  /// Notes for every parameter that the optimizer itself applies factors to its 16-bit gradient, in
  /// float32 (multi_tensor/pending_factors.h), so that unscale_() and clip_grad_norm_() note them
  /// instead of rounding it.
  virtual void claim_factors() = 0;

  /// Whether scaled_step() can take the gradients as they are now; else GradScaler unscales them
  /// and calls step(), as for any optimizer.
  virtual bool can_step_scaled() const = 0;

  /// Applies one step with gradients times scale.inverse, or changes no parameter and no state when
  /// one of them is not finite. Afterwards gradients are unscaled, or undefined where the optimizer
  /// consumes them, in both cases.
  ///
  /// Errors: any, with nothing changed.
  virtual Result scaled_step(const Scale& scale) = 0;
};

}  // namespace torchamp::amp
