#pragma once
// Reading a few numbers from the device with one wait.

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include "torchamp/base/export.h"

namespace torchamp::multi_tensor {

/// Copies device scalars to the host, behind the work that is queued already.
///
/// get() waits for that copy and for nothing queued after it; where something else has waited since
/// (a GradScaler reading its outcome) it does not wait at all. Values keep float64's precision.
class TORCHAMP_API DeviceRead {
 public:
  /// `scalars`: one element each, of one device, any real dtype.
  explicit DeviceRead(const std::vector<at::Tensor>& scalars);

  /// Whether get() would not wait.
  bool has_arrived() const;
  std::vector<double> get();

 private:
  at::Tensor host_;
  std::optional<c10::Event> copied_;
};

}  // namespace torchamp::multi_tensor
