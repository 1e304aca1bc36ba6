#pragma once
// Products of 16-bit matrices in blocks: what is float32 meanwhile stays small. Internal.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace torchamp::ops::detail {

/// beta * self + alpha * a b, each element summed in float32 and rounded once. Where `self` is
/// undefined the first term is left out; else its shape expands to the result's.
///
/// Shapes: a (M, K), b (K, N), result (M, N), or with a batch before; all of one 16-bit dtype.
at::Tensor product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                   const at::Scalar& beta, const at::Scalar& alpha);

/// self <- beta * self + alpha * a b. `self` has the shape of the result and no memory of a or b.
void product_into(const at::Tensor& self, const at::Tensor& a, const at::Tensor& b,
                  const at::Scalar& beta, const at::Scalar& alpha);

}  // namespace torchamp::ops::detail
