#pragma once
// StepOutcome: what GradScaler::step() did, as a value.

#include <memory>
#include <string>
#include <utility>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::amp {

namespace detail {
class StepHistory;
}

/// Whether a step was applied, or skipped and why.
///
/// Reading is lazy: the first question that needs a number from the device waits for it, and copies
/// of an outcome share the answer. After a step of a plain optimizer only reason() and to_string()
/// of a skipped step may wait; step() itself had to decide.
///
/// Thread safety: an outcome and its copies from one thread at a time.
class TORCHAMP_API StepOutcome {
 public:
  enum class Reason {
    kApplied,  ///< the optimizer's step ran
    kInf,      ///< skipped: some gradient was inf, none was NaN
    kNan,      ///< skipped: some gradient was NaN
  };

  bool applied() const { return !skipped(); }
  bool skipped() const;
  explicit operator bool() const { return applied(); }

  /// Why. Told from the gradients as step() found them (on CPU as unscale_() found them): clipping
  /// by an infinite norm turns inf into NaN.
  Reason reason() const;
  /// "applied", "skipped: inf gradient" or "skipped: nan gradient".
  std::string to_string() const;

  /// What the optimizer's step() returned; undefined when skipped, and when it returned nothing.
  const at::Tensor& loss() const;

  /// Whether applied() and skipped() answer without waiting for a device.
  bool is_read() const;

  /// What decides: one element on its device, not 0 when the step is skipped. Undefined once
  /// is_read(). For code that goes on without waiting, as optim::Ema does.
  const at::Tensor& found_inf() const;

  /// A step that was applied, known beforehand.
  static StepOutcome make_applied(at::Tensor loss);
  /// A step that is skipped if `found_inf` (one element) is not 0; `has_nan` (a bool of one
  /// element) tells NaN from inf then. Both are read when first asked for.
  static StepOutcome make_pending(at::Tensor found_inf, at::Tensor has_nan = {});

 private:
  struct Reading;
  friend class GradScaler;
  friend class detail::StepHistory;
  explicit StepOutcome(std::shared_ptr<Reading> reading) : reading_(std::move(reading)) {}
  void set_loss(at::Tensor loss);
  void set_has_nan(at::Tensor has_nan);
  /// What found_inf() says, read elsewhere; changes nothing where it has been read already.
  void settle(bool skipped) const;

  std::shared_ptr<Reading> reading_;
};

/// "applied", "inf" or "nan".
TORCHAMP_API const char* to_string(StepOutcome::Reason reason);

}  // namespace torchamp::amp
