#pragma once
// 16-bit tensors (float16, bfloat16) to float32 and back, on all threads, in the memory order that
// they have. Internal.

#include <ATen/core/Tensor.h>

namespace torchamp::ops::detail {

inline bool is_16_bit(at::ScalarType dtype) { return dtype == at::kHalf || dtype == at::kBFloat16; }

/// The numbers of a 16-bit tensor in a new float32 one, of the same sizes and order of dimensions
/// in memory. Whatever is not 16-bit comes back as it is, undefined tensors too.
at::Tensor to_float(const at::Tensor& tensor);

/// The numbers of a float32 tensor, each rounded once to nearest even, in a new tensor of `dtype`,
/// a 16-bit one, of the same sizes and order in memory. Whatever is not float32 comes back as it
/// is.
at::Tensor round_to(at::ScalarType dtype, const at::Tensor& tensor);

/// Rounds the numbers of a float32 tensor into a 16-bit one of the same sizes.
void store_rounded(const at::Tensor& from, const at::Tensor& to);

}  // namespace torchamp::ops::detail
