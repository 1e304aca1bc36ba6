#pragma once
// BufferGuard and BufferSnapshot: put a module's buffers back after a skipped step.

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/amp/step_outcome.h"
#include "torchamp/base/export.h"

namespace torchamp::amp {

/// The values of some tensors at a moment, and the way back to them. BufferGuard is the same with
/// the decision in it.
///
/// Devices: any; copies stay on each tensor's device and do not wait for it.
class TORCHAMP_API BufferSnapshot {
 public:
  /// Takes the values now; undefined tensors are left out.
  explicit BufferSnapshot(std::vector<at::Tensor> buffers);

  /// Takes the values anew, into the memory already held.
  void take();
  /// Writes the values back, in place.
  void restore();

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> values_;
};

/// Keeps a module's buffers in step with its parameters: where a step is skipped, the buffers go
/// back to what they were when the guard was made.
///
/// A skipped step leaves the parameters alone, but the forward pass has already moved the buffers:
/// BatchNorm's running statistics are inf or NaN after an overflow and stay so, and
/// num_batches_tracked counts a batch that taught nothing. Make the guard before the forward pass
/// (before the first one of an accumulation window) and let it see the outcome:
///
///     amp::BufferGuard buffers(model->buffers());
///     ...
///     const auto outcome = buffers.follow(scaler.step(optimizer));
///
/// Without follow() nothing is put back, also when an exception passes.
///
/// Devices: any; the copies stay on each tensor's device and do not wait for it.
/// Example: examples/skipped_steps.cpp
class TORCHAMP_API BufferGuard {
 public:
  /// Takes the values now; undefined tensors are left out.
  [[nodiscard]] explicit BufferGuard(std::vector<at::Tensor> buffers)
      : snapshot_(std::move(buffers)) {}

  /// Puts the buffers back if the step was skipped; returns the outcome as it came. With several
  /// optimizers one skipped step is enough: follow all of them.
  StepOutcome follow(StepOutcome outcome);

 private:
  BufferSnapshot snapshot_;
};

}  // namespace torchamp::amp
