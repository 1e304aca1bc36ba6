#pragma once
// The factor of gradient clipping.

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// The factor that brings `norm` to at most `max_norm`: min(1, max_norm / (norm + 1e-6)) with the
/// roundings of torch.nn.utils.clip_grad_norm_ in float32. NaN stays.
///
/// Source: PyTorch torch/nn/utils/clip_grad.py, `_clip_grads_with_norm_`.
TORCHAMP_KERNEL_FUNCTION float clip_factor(float norm, double max_norm) {
  // The reciprocal times max_norm, not a division: Python's `max_norm / tensor` computes that.
  const float inverse = 1.0F / (norm + static_cast<float>(1e-6));
  const float factor = inverse * static_cast<float>(max_norm);
  return factor > 1.0F ? 1.0F : factor;
}

}  // namespace torchamp::kernels
