#pragma once
// The norm of a list of tensors seen as one long vector, and multiplying a list by one factor.

#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// The p-norm of all elements of all tensors: the norm of the tensors' norms. A 0-dim tensor on the
/// device of the first defined tensor; 0 (float32, CPU) when there is none. Does not wait for any
/// device.
///
/// Bit for bit what torch.nn.utils.get_total_norm gives for tensors of one device and dtype. A
/// sparse tensor counts with its coalesced values.
///
/// Dtypes:  floating and complex; each tensor's norm is rounded to the tensor's own real dtype.
/// Source:  PyTorch torch/nn/utils/clip_grad.py, `_get_total_norm`.
TORCHAMP_API at::Tensor total_norm(const std::vector<at::Tensor>& tensors, double norm_type = 2.0);

/// x <- x * factor for every tensor, in place; `factor` is a 0-dim tensor, copied where needed.
TORCHAMP_API void multiply_(const std::vector<at::Tensor>& tensors, const at::Tensor& factor);

}  // namespace torchamp::multi_tensor
