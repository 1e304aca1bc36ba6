#pragma once
// The casts of weights that a thread keeps while it is inside of autocast regions. Internal: the
// policy kernels fill it, the regions end it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torchamp/base/export.h"

namespace torchamp::amp::detail {

/// Casts of float32 tensors that live on their own: parameters, frozen weights, buffers, and the
/// transposed views of them that torch::nn::Linear hands out.
///
/// A cast is given again only while it is right: the same tensor and dtype, memory that was neither
/// written (its version counter) nor exchanged since, and a history for backward() where, and only
/// where, one is wanted. Once a gradient has come back to it, it is not given again either: a step
/// may follow, and that of torch::optim::SGD writes through data(), which moves no counter. Sources
/// are held weakly; the casts of those that are gone go with the next ones made.
///
/// Threads: one object a thread; forget_in_all_threads() reaches the others at their next cast.
class CastCache {
 public:
  /// `source` in `dtype`, kept or made; one without gradient is kept only if `keep_without_grad`.
  /// The autocast key must be excluded by the caller.
  at::Tensor cast(const at::Tensor& source, at::ScalarType dtype, bool keep_without_grad);

  /// Casts that are held now.
  size_t size() const;

 private:
  struct Key {
    const c10::TensorImpl* source;
    at::ScalarType dtype;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  // A cast, and its transpose once that was asked for.
  struct Cast {
    at::Tensor value;
    at::Tensor transposed;
    uint32_t version = 0;
    std::shared_ptr<std::atomic<bool>> spent;  // a gradient came back; set where there is a history
  };
  struct Entry {
    explicit Entry(const at::Tensor& tensor);
    bool is_current(const at::Tensor& tensor) const;

    bool is_gone() const;

    c10::weak_intrusive_ptr<c10::TensorImpl> source;
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // keeps its address from being used again
    int64_t storage_offset;
    at::DimVector sizes;
    at::DimVector strides;
    uint32_t version;
    Cast with_history;
    Cast without_history;
  };

  at::Tensor kept(const at::Tensor& owner, bool transposed, bool wants_history,
                  at::ScalarType dtype);
  void drop_the_gone();

  std::unordered_map<Key, Entry, KeyHash> entries_;
  std::vector<Key> keys_;  // of the entries, oldest first but for those that took a freed place
  size_t cursor_ = 0;
  uint64_t epoch_ = 0;
};

/// Makes every thread's cache forget its casts before it gives the next one.
void forget_in_all_threads();

}  // namespace torchamp::amp::detail
