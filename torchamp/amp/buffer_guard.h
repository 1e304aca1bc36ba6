#pragma once
// BufferSnapshot: puts a module's buffers back after a skipped step.

#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::amp {

/// The values of some tensors at a moment, and the way back to them.
///
/// A skipped step leaves the parameters alone, but the forward pass has already moved the buffers:
/// BatchNorm's running statistics are inf or NaN after an overflow and stay so. Take a snapshot of
/// `model->buffers()` before forward and restore it when step() says skipped.
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

}  // namespace torchamp::amp
