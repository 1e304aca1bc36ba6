#pragma once
// What a backward pass tells on its way: which parameters it gives a scaled gradient, and whether
// it computes in float16. Internal to GradScaler.

#include <memory>

#include <ATen/core/Tensor.h>

#include "torchamp/multi_tensor/scaled_marks.h"

namespace torchamp::amp::detail {

/// Marks, whenever a backward pass comes through `scaled`, the parameters whose gradients that pass
/// accumulates; `scale` is the factor they hold then. A pass that accumulates nothing
/// (autograd::grad) marks nothing. Does nothing for a tensor without a graph.
void mark_in_backward(const at::Tensor& scaled,
                      const std::shared_ptr<multi_tensor::ScaledMarks>& marks,
                      const at::Tensor& scale);

/// Warns if a backward pass comes through `loss` that computes in float16 on its way to parameters.
/// Inference has no such pass, so it never warns.
void warn_of_float16_in_backward(const at::Tensor& loss);

}  // namespace torchamp::amp::detail
