#pragma once
// How the trainer calls a model: the forward and loss functions, and where a batch is put.

#include <functional>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "torchamp/base/export.h"
#include "torchamp/train/data/dataset.h"

namespace torchamp::train {

/// From the inputs of a batch to the model's output.
using Forward = std::function<at::Tensor(const at::Tensor& input)>;
/// From output and target to a scalar: the *mean* over the elements of the target.
using Loss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

/// Cross entropy of logits [B, C] against classes [B], or [B, T, C] against [B, T].
TORCHAMP_API at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target);

/// Where and how the tensors of a run lie.
struct Placement {
  c10::Device device = c10::Device(c10::kCPU);
  bool channels_last = false;  ///< for 4-D tensors
};

/// `batch` on the device, 4-D inputs in the asked-for layout. Copies nothing that lies right
/// already.
TORCHAMP_API Batch place(const Batch& batch, const Placement& placement);

}  // namespace torchamp::train
