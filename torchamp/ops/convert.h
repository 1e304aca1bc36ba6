#pragma once
// float16 tensors to float32 and back, on all threads, in the memory order that they have.
// Internal.

#include <ATen/core/Tensor.h>

namespace torchamp::ops::detail {

/// The numbers of a float16 tensor in a new float32 one, of the same sizes and order of dimensions
/// in memory. Whatever is not float16 comes back as it is, undefined tensors too.
at::Tensor to_float(const at::Tensor& tensor);

/// The numbers of a float32 tensor, each rounded once to nearest even, in a new float16 one of the
/// same sizes and order in memory. Whatever is not float32 comes back as it is.
at::Tensor to_half(const at::Tensor& tensor);

/// Rounds the numbers of a float32 tensor into a float16 one of the same sizes.
void store_half(const at::Tensor& from, const at::Tensor& to);

}  // namespace torchamp::ops::detail
