#include "torchamp/multi_tensor/pending_factors.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/intrusive_ptr.h>

namespace torchamp::multi_tensor {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// Values by tensor. Holds tensors weakly: a new one at an old address is not taken for the old one,
// since the weak reference keeps the address.
template <typename Value>
class ByTensor {
 public:
  void set(const at::Tensor& tensor, Value value) {
    const std::lock_guard lock(mutex_);
    forget_dead();
    entries_.insert_or_assign(tensor.unsafeGetTensorImpl(),
                              Entry{WeakTensor(tensor.getIntrusivePtr()), std::move(value)});
  }
  void erase(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    entries_.erase(tensor.unsafeGetTensorImpl());
  }
  // Counts; nothing is kept of what has come to 0.
  void add(const at::Tensor& tensor, Value difference) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    if (found != entries_.end()) {
      found->second.value += difference;
      if (found->second.value <= 0) entries_.erase(found);
    } else if (difference > 0) {
      forget_dead();
      entries_.emplace(tensor.unsafeGetTensorImpl(),
                       Entry{WeakTensor(tensor.getIntrusivePtr()), difference});
    }
  }
  std::optional<Value> find(const at::Tensor& tensor) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? std::nullopt : std::optional<Value>(found->second.value);
  }

 private:
  struct Entry {
    WeakTensor tensor;
    Value value;
  };
  // Whenever the list has doubled since the last time, so it costs nothing on average.
  void forget_dead() {
    if (entries_.size() < limit_) return;
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      entry = entry->second.tensor.expired() ? entries_.erase(entry) : std::next(entry);
    }
    limit_ = std::max<size_t>(64, 2 * entries_.size());
  }

  std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  size_t limit_ = 64;
};

// Never destroyed: optimizers in static storage may step until the very end.
struct NotedFactors {
  PendingFactors factors;
  int64_t version = 0;
};

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

ByTensor<NotedFactors>& factors_by_gradient() {
  static auto* const factors = new ByTensor<NotedFactors>;
  return *factors;
}

ByTensor<int>& appliers() {
  static auto* const parameters = new ByTensor<int>;
  return *parameters;
}

}  // namespace

std::optional<PendingFactors> pending_factors(const at::Tensor& gradient) {
  auto noted = factors_by_gradient().find(gradient);
  if (!noted) return std::nullopt;
  noted->factors.is_written = noted->version != version_of(gradient);
  return noted->factors;
}

void set_pending_factors(const at::Tensor& gradient, PendingFactors factors) {
  if (factors.factor.defined() || factors.second_factor.defined()) {
    factors_by_gradient().set(gradient, {std::move(factors), version_of(gradient)});
  } else {
    factors_by_gradient().erase(gradient);
  }
}

void set_applies_factors(const at::Tensor& parameter, bool applies) {
  appliers().add(parameter, applies ? 1 : -1);
}

bool applies_factors(const at::Tensor& parameter) { return appliers().find(parameter).has_value(); }

}  // namespace torchamp::multi_tensor
