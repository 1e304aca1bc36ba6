#pragma once
// Cross entropy of class indices as one op. Internal.

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/cross_entropy_loss_ops.h>

#include "torchamp/ops/before.h"

namespace torchamp::ops::detail {

/// For AutogradCPU: logits [N, C] of float32, bfloat16 or float16, targets [N] of int64; any
/// weight, reduction and label smoothing. The graph keeps the logits and two float32 numbers a row.
/// A graph of the gradient is made of LibTorch's own ops.
struct CrossEntropyLoss {
  static inline Before before;
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, int64_t reduction,
                         c10::SymInt ignore_index, double label_smoothing);
};

/// For AutocastCPU, where LibTorch makes float32 of its arguments and so of the loss: 16-bit
/// logits are read as they are, and the loss is float32.
struct CrossEntropyUnderAutocast {
  static inline Before before;
  static at::Tensor call(c10::DispatchKeySet keys, const at::Tensor& self, const at::Tensor& target,
                         const std::optional<at::Tensor>& weight, int64_t reduction,
                         c10::SymInt ignore_index, double label_smoothing);
};

}  // namespace torchamp::ops::detail
