#pragma once
// The kernel that an op had before ours stood on it, callable without boxing. Internal.

#include <mutex>
#include <optional>
#include <utility>

#include <ATen/core/dispatch/Dispatcher.h>

namespace torchamp::ops::detail {

/// What LibTorch's dispatcher calls for an op with one key, taken once. LibTorch never takes its
/// own kernels away, and we stand on no other library's, so it stays valid.
class Before {
 public:
  /// Called under the lock of install(), before our kernel is registered.
  void take(const c10::OperatorHandle& op, c10::DispatchKey key);
  bool is_taken() const { return op_.has_value(); }

  template <class Return, class... Args>
  Return call(c10::DispatchKeySet keys, Args... args) const {
    return kernel_.call<Return, Args...>(*op_, keys, std::forward<Args>(args)...);
  }

 private:
  std::optional<c10::OperatorHandle> op_;
  c10::KernelFunction kernel_;
};

}  // namespace torchamp::ops::detail
