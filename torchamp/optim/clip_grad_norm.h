#pragma once
// Clipping gradients by their common norm. Unscale first: see GradScaler::unscale_.

#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::optim {

/// Multiplies all gradients by min(1, max_norm / (norm + 1e-6)), where norm is the p-norm of all of
/// them taken as one vector; returns that norm.
///
/// Unlike LibTorch's function of this name it returns a tensor, so it does not wait for the device
/// (with `error_if_nonfinite` it must). Parameters without a gradient are left out; one that is
/// listed twice, as a tied weight is in `Module::parameters()`, counts once.
///
/// Dtypes:  every floating and complex type, mixtures too; sparse gradients as well.
/// Devices: any mixture; the norm is on the device of the first gradient.
/// Units:   with a GradScaler call unscale_() before, else max_norm meets scaled gradients; one
///          warning for a scaler says so.
/// Errors:  c10::ValueError for a max_norm that is negative or NaN or a NaN norm_type; with
///          `error_if_nonfinite` c10::Error for a norm that is inf or NaN. Nothing has changed
///          then.
/// Source:  PyTorch torch/nn/utils/clip_grad.py; the same bits for gradients of one device and
///          dtype.
TORCHAMP_API at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm,
                                        double norm_type = 2.0, bool error_if_nonfinite = false);

/// The p-norm of all gradients taken as one vector; changes nothing, does not wait for the device.
TORCHAMP_API at::Tensor grad_norm(const std::vector<at::Tensor>& parameters,
                                  double norm_type = 2.0);

}  // namespace torchamp::optim
