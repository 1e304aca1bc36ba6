#pragma once
// The function behind BatchNormReLU2d, and its place in the graph. Internal.

#include <ATen/core/Tensor.h>

namespace torchamp::nn::detail {

struct FusedNorm {
  at::Tensor weight, bias;               ///< undefined: 1 and 0
  at::Tensor running_mean, running_var;  ///< updated with batch statistics, else used; may lack
  bool uses_batch_statistics = true;
  double momentum = 0.1;
  double eps = 1e-5;
};

/// relu(batch_norm(x) [+ residual]); by one kernel where that takes the tensors, else by LibTorch's
/// ops. An undefined residual is none.
at::Tensor batch_norm_relu(const at::Tensor& x, const at::Tensor& residual, const FusedNorm& norm);

}  // namespace torchamp::nn::detail
