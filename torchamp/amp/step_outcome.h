#pragma once
// StepOutcome: what GradScaler::step() did, as a value.

#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::amp {

/// Whether a step was applied, or skipped and why.
///
/// Reading is lazy: only reason() and to_string() of a skipped step may wait for the device.
class TORCHAMP_API StepOutcome {
 public:
  enum class Reason {
    kApplied,  ///< the optimizer's step ran
    kInf,      ///< skipped: some gradient was inf, none was NaN
    kNan,      ///< skipped: some gradient was NaN
  };

  bool applied() const { return applied_; }
  bool skipped() const { return !applied_; }
  explicit operator bool() const { return applied_; }

  /// Why. Told from the gradients as step() found them (on CPU as unscale_() found them): clipping
  /// by an infinite norm turns inf into NaN.
  Reason reason() const;
  /// "applied", "skipped: inf gradient" or "skipped: nan gradient".
  std::string to_string() const;

  /// What the optimizer's step() returned; undefined when skipped, and when it returned nothing.
  const at::Tensor& loss() const { return loss_; }

  static StepOutcome make_applied(at::Tensor loss) { return {true, std::move(loss), {}}; }
  /// `has_nan` is a 0-dim bool, read when the reason is asked for.
  static StepOutcome make_skipped(at::Tensor has_nan) { return {false, {}, std::move(has_nan)}; }

 private:
  StepOutcome(bool applied, at::Tensor loss, at::Tensor has_nan)
      : applied_(applied), loss_(std::move(loss)), has_nan_(std::move(has_nan)) {}

  bool applied_;
  at::Tensor loss_;
  at::Tensor has_nan_;
};

}  // namespace torchamp::amp
