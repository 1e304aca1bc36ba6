#include "torchamp/multi_tensor/scaled_marks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <type_traits>
#include <utility>

namespace torchamp::multi_tensor {
namespace {

// Constant from the start and never destroyed, so scalers in static storage and in plugins find it
// at any time.
struct Registry {
  std::mutex mutex;  // guards the list of owners and what is in them
  ScaledMarks* first = nullptr;
  std::atomic<int64_t> num_marks = 0;
};
static_assert(std::is_trivially_destructible_v<Registry>);
constinit Registry registry;

}  // namespace

std::shared_ptr<ScaledMarks> ScaledMarks::make() {
  std::shared_ptr<ScaledMarks> marks(new ScaledMarks);
  const std::lock_guard lock(registry.mutex);
  marks->next_ = registry.first;
  if (registry.first != nullptr) {
    registry.first->previous_ = marks.get();
  }
  registry.first = marks.get();
  return marks;
}

ScaledMarks::~ScaledMarks() {
  const std::lock_guard lock(registry.mutex);
  registry.num_marks -= static_cast<int64_t>(marked_.size());
  (previous_ != nullptr ? previous_->next_ : registry.first) = next_;
  if (next_ != nullptr) {
    next_->previous_ = previous_;
  }
}

void ScaledMarks::add(const std::vector<at::Tensor>& parameters, const at::Tensor& scale) {
  const std::lock_guard lock(registry.mutex);
  scale_ = scale;
  for (const auto& parameter : parameters) {
    const bool is_new =
        marked_
            .insert_or_assign(parameter.unsafeGetTensorImpl(),
                              Mark{WeakTensor(parameter.getIntrusivePtr()), std::nullopt})
            .second;
    registry.num_marks += is_new ? 1 : 0;
  }
}

void ScaledMarks::note_gradients(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(registry.mutex);
  for (const auto& parameter : parameters) {
    const auto found = marked_.find(parameter.unsafeGetTensorImpl());
    if (found != marked_.end() && parameter.grad().defined()) {
      found->second.gradient.emplace(parameter.grad().getIntrusivePtr());
    }
  }
}

void ScaledMarks::remove(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(registry.mutex);
  for (const auto& parameter : parameters) {
    registry.num_marks -= static_cast<int64_t>(marked_.erase(parameter.unsafeGetTensorImpl()));
  }
}

void ScaledMarks::clear() {
  const std::lock_guard lock(registry.mutex);
  registry.num_marks -= static_cast<int64_t>(marked_.size());
  marked_.clear();
}

bool ScaledMarks::has(const at::Tensor& parameter) const {
  const std::lock_guard lock(registry.mutex);
  return marked_.count(parameter.unsafeGetTensorImpl()) > 0;
}

bool ScaledMarks::has_any(const std::vector<at::Tensor>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [this](const at::Tensor& parameter) {
    if (!parameter.defined() || !parameter.grad().defined()) {
      return false;
    }
    const auto found = marked_.find(parameter.unsafeGetTensorImpl());
    return found != marked_.end() &&
           (!found->second.gradient.has_value() ||
            found->second.gradient->_unsafe_get_target() == parameter.grad().unsafeGetTensorImpl());
  });
}

std::optional<double> report_scale_left_in(const std::vector<at::Tensor>& parameters) {
  if (registry.num_marks.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  // Kept beyond the lock: the last reference to an owner must not end under it.
  std::vector<std::shared_ptr<ScaledMarks>> owners;
  std::vector<std::pair<ScaledMarks*, at::Tensor>> suspects;
  {
    const std::lock_guard lock(registry.mutex);
    for (ScaledMarks* each = registry.first; each != nullptr; each = each->next_) {
      if (auto owner = each->weak_from_this().lock()) {  // else it waits for the lock to go
        if (!owner->is_reported_ && owner->has_any(parameters)) {
          suspects.emplace_back(owner.get(), owner->scale_);
        }
        owners.push_back(std::move(owner));
      }
    }
  }
  for (const auto& [owner, scale] : suspects) {
    const double value = scale.item<double>();  // may wait, so not under the lock
    if (value == 1.0) {
      owner->clear();
      continue;
    }
    const std::lock_guard lock(registry.mutex);
    owner->is_reported_ = true;
    return value;
  }
  return std::nullopt;
}

}  // namespace torchamp::multi_tensor
