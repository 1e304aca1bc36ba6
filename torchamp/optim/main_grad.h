#pragma once
// main_grad(): the float32 gradient of a parameter, and how sums of 16-bit gradients become
// float32. Knows no master weights.

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::optim {

/// The gradient of `parameter` in float32; undefined where there is none.
///
/// After one backward pass `.grad` of a 16-bit parameter is 16-bit and this is a copy; after a
/// second pass `.grad` is the float32 sum and this is that tensor. Factors of unscale_() and
/// clip_grad_norm_() that wait for the optimizer are multiplied in, into a copy. Float64 gradients
/// come back as they are.
TORCHAMP_API at::Tensor main_grad(const at::Tensor& parameter);

namespace detail {

/// Makes a 16-bit gradient of `parameter` float32, so that what is added next is added in float32.
/// Called before that gradient arrives, in a backward pass.
void widen_gradient(const at::Tensor& parameter);

}  // namespace detail
}  // namespace torchamp::optim
