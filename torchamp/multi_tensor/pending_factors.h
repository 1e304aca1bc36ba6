#pragma once
// PendingFactors: factors that belong to a 16-bit gradient but were not multiplied into it, because
// whoever updates the parameter will do so in float32. The place where a scaler, clipping and an
// optimizer meet; knows none of them.

#include <optional>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// The dtypes whose gradients factors wait for.
inline bool is_16bit(at::ScalarType dtype) { return dtype == at::kBFloat16 || dtype == at::kHalf; }

/// The true gradient is gradient * factor * second_factor, each product rounded to float32.
/// Float32 tensors of one element, any device; undefined is 1.
struct PendingFactors {
  at::Tensor factor;         ///< of the loss scale
  at::Tensor second_factor;  ///< of clipping
  /// Whether the gradient was written to since they were noted; told by pending_factors().
  bool is_written = false;
};

/// The factors noted for this tensor, also when it was written to since: what a user multiplies or
/// a backward pass adds holds the same scale. Nothing when there are none. Thread safe.
TORCHAMP_API std::optional<PendingFactors> pending_factors(const at::Tensor& gradient);
/// Notes them; both undefined forgets them.
TORCHAMP_API void set_pending_factors(const at::Tensor& gradient, PendingFactors factors);

/// Says that one more optimizer of `parameter` applies factors itself, or one less. Weak: a
/// parameter that dies is forgotten. Thread safe.
TORCHAMP_API void set_applies_factors(const at::Tensor& parameter, bool applies);
TORCHAMP_API bool applies_factors(const at::Tensor& parameter);

}  // namespace torchamp::multi_tensor
