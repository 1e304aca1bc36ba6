#pragma once
// The factor of gradient clipping.

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// The factor that brings `norm` to at most `max_norm`: min(1, max_norm / (norm + 1e-6)) with the
/// roundings of torch.nn.utils.clip_grad_norm_ in T, float or double. NaN stays.
///
/// Source: PyTorch torch/nn/utils/clip_grad.py, `_clip_grads_with_norm_`.
template <typename T>
TORCHAMP_LANE_FUNCTION T clip_factor(T norm, double max_norm) {
  // The reciprocal times max_norm, not a division: Python's `max_norm / tensor` computes that.
  const T inverse = T(1) / (norm + static_cast<T>(1e-6));
  const T factor = inverse * static_cast<T>(max_norm);
  return factor > T(1) ? T(1) : factor;
}

}  // namespace torchamp::kernels
