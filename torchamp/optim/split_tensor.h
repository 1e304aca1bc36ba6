#pragma once
// Float32 values as a 16-bit weight and what it lacks, for whole tensors of any device. Internal:
// MasterWeight keeps the arrays. The bits are those of kernels/convert.h.

#include <ATen/core/Tensor.h>

namespace torchamp::optim::detail {

/// The arrays of n float32 values, each one-dimensional.
struct SplitTensor {
  at::Tensor weight;  ///< int16 [n]: the bits of the nearest bfloat16 or float16
  at::Tensor rest;    ///< bfloat16: int16 [n], the low halves; float16: float32 [n], the values
  at::Tensor ties;    ///< bfloat16: uint8, a bit a value, padded to 16 bits; float16: undefined
};

/// uint8 elements that hold one bit for each of n values.
constexpr int64_t num_tie_bytes(int64_t n) { return (n + 15) / 16 * 2; }

/// `values`: float32 [n]; `dtype`: kBFloat16 or kHalf. By LibTorch's ops, so on any device.
SplitTensor split_tensor(const at::Tensor& values, at::ScalarType dtype);
/// The float32 [n] that split_tensor() was given; a new tensor. Where a float16 weight is not the
/// nearest to its value it was written since, and counts itself.
at::Tensor join_tensor(const SplitTensor& parts, at::ScalarType dtype);

}  // namespace torchamp::optim::detail
