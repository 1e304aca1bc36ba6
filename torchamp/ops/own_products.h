#pragma once
// Products of 16-bit matrices by TorchAmp's own kernel, which reads them where they lie: of
// bfloat16 the small ones, of float16 nearly all, and those with a vector. Internal.

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

namespace torchamp::ops::detail {

/// Whether the kernel takes a b, both of `dtype`, a 16-bit one, with shapes that fit: (M, K) and
/// (K, N) or (K), or with a batch before. It does where these sizes gain, unless the switches give
/// the call to LibTorch (rule_for): in bfloat16 with choices off, in float16 where the CPU has fp16
/// arithmetic.
bool takes_product(at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b);

/// beta * self + alpha * a b in a new tensor, each element summed in float32 and rounded once.
/// Where `self` is undefined, or beta is 0, the first term is left out; else it expands to the
/// result.
at::Tensor own_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& self,
                       const at::Scalar& beta, const at::Scalar& alpha);

/// out <- beta * self + alpha * a b. `out` has the shape of the result, no memory of a or b and no
/// element twice; `self` is `out` or has none of its memory.
void own_product_into(const at::Tensor& out, const at::Tensor& self, const at::Tensor& a,
                      const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha);

}  // namespace torchamp::ops::detail
