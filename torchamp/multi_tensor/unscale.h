#pragma once
// Dividing lists of gradients by the loss scale, and finding inf and NaN in them. Decides nothing:
// the flags stay on their devices.

#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// One float32 flag a device: 0, or 1 once a tensor on that device held an inf or a NaN.
class TORCHAMP_API NonFiniteFlags {
 public:
  /// The flag of `device`, made with value 0 on first use.
  at::Tensor& on(at::Device device);

  /// True while no device has a flag, that is while nothing was checked.
  bool empty() const { return flags_.empty(); }
  /// True when every flag is on the host, so that reading them waits for nothing.
  bool on_host() const;
  /// The sum of all flags, on `device`: 0 exactly when everything was finite. A new tensor; does
  /// not wait for any device. Needs at least one flag.
  at::Tensor sum(at::Device device) const;

 private:
  std::vector<at::Tensor> flags_;
};

/// x <- x * inv_scale for every tensor, in place; raises the flag of a tensor's device when it held
/// an inf or NaN.
///
/// The kernels look at x before the multiplication. With `check_product` the product is looked at
/// too: needed when inv_scale may be above 1, where a finite x can become inf.
///
/// Shapes:  any, also empty; the list may be empty. Undefined tensors are left out.
/// Dtypes:  f16, bf16, f32, f64 in any mixture; arithmetic in float32 (f64: in double).
/// Devices: any mixture; `inv_scale` (float32, one element) is copied where needed. Queued.
/// Errors:  c10::ValueError naming the position, as tensor_values(); nothing has changed then.
TORCHAMP_API void unscale_(const std::vector<at::Tensor>& tensors, const at::Tensor& inv_scale,
                           NonFiniteFlags& found, bool check_product = false);

/// Raises the flag of every device on which some tensor holds an inf or NaN; changes no tensor.
///
/// Shapes, dtypes, devices and errors as unscale_().
TORCHAMP_API void check_finite(const std::vector<at::Tensor>& tensors, NonFiniteFlags& found);

/// Raises the flag of every device on which some product tensor * inv_scale, in float32 (f64: in
/// double), is inf or NaN; changes no tensor.
///
/// Shapes, dtypes, devices and errors as unscale_().
TORCHAMP_API void check_product_finite(const std::vector<at::Tensor>& tensors,
                                       const at::Tensor& inv_scale, NonFiniteFlags& found);

/// A 0-dim bool on `device`: whether some tensor holds a NaN. Does not wait for any device.
TORCHAMP_API at::Tensor any_nan(const std::vector<at::Tensor>& tensors, at::Device device);

}  // namespace torchamp::multi_tensor
