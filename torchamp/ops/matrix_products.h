#pragma once
// Products of float16 matrices in blocks: what is float32 meanwhile stays small. Internal.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace torchamp::ops::detail {

/// out <- beta * self + alpha * a b, each element summed in float32 and rounded once. Where `self`
/// is undefined the first term is left out; else it has the shape of `out`, if need be with
/// strides of 0, and may be `out` itself.
///
/// Shapes: a (M, K), b (K, N), out (M, N); all float16.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
              const at::Scalar& beta, const at::Scalar& alpha, const at::Tensor& out);

/// The same for a batch: a (B, M, K), b (B, K, N), out (B, M, N).
void multiply_batch(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                    const at::Scalar& beta, const at::Scalar& alpha, const at::Tensor& out);

}  // namespace torchamp::ops::detail
