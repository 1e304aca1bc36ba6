#pragma once
// Tensors that a call may leave out, such as weights and biases. Internal.

#include <optional>

#include <ATen/core/Tensor.h>

#include "torchamp/ops/convert.h"

namespace torchamp::ops::detail {

/// Whether there is a tensor. LibTorch leaves one out as no value, or as an undefined tensor.
inline bool is_given(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() && tensor->defined();
}

/// The numbers of a float32 or 16-bit tensor as float32, contiguous; undefined where there is none.
inline at::Tensor in_float(const std::optional<at::Tensor>& tensor) {
  return is_given(tensor) ? to_float(*tensor).contiguous() : at::Tensor();
}

/// Those numbers as kernels take them: null where the tensor is undefined.
inline const float* numbers_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

}  // namespace torchamp::ops::detail
