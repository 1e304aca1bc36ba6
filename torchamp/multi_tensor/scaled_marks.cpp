#include "torchamp/multi_tensor/scaled_marks.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

namespace torchamp::multi_tensor {
namespace {

struct Registry {
  std::mutex mutex;  // guards the owners and what is in them
  std::vector<std::weak_ptr<ScaledMarks>> owners;
  std::atomic<int64_t> num_marks = 0;
};

// Never destroyed: scalers in static storage may outlive any other static object.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

}  // namespace

std::shared_ptr<ScaledMarks> ScaledMarks::make() {
  std::shared_ptr<ScaledMarks> marks(new ScaledMarks);
  const std::lock_guard lock(registry().mutex);
  registry().owners.push_back(marks);
  return marks;
}

ScaledMarks::~ScaledMarks() {
  clear();
  const std::lock_guard lock(registry().mutex);
  auto& owners = registry().owners;
  owners.erase(std::remove_if(owners.begin(), owners.end(),
                              [](const auto& owner) { return owner.expired(); }),
               owners.end());
}

void ScaledMarks::add(const std::vector<at::Tensor>& parameters, const at::Tensor& scale) {
  const std::lock_guard lock(registry().mutex);
  scale_ = scale;
  for (const auto& parameter : parameters) {
    const bool is_new =
        marked_.insert_or_assign(parameter.unsafeGetTensorImpl(), parameter.getIntrusivePtr())
            .second;
    registry().num_marks += is_new ? 1 : 0;
  }
}

void ScaledMarks::remove(const std::vector<at::Tensor>& parameters) {
  const std::lock_guard lock(registry().mutex);
  for (const auto& parameter : parameters) {
    registry().num_marks -= static_cast<int64_t>(marked_.erase(parameter.unsafeGetTensorImpl()));
  }
}

void ScaledMarks::clear() {
  const std::lock_guard lock(registry().mutex);
  registry().num_marks -= static_cast<int64_t>(marked_.size());
  marked_.clear();
}

bool ScaledMarks::has(const at::Tensor& parameter) const {
  const std::lock_guard lock(registry().mutex);
  return marked_.count(parameter.unsafeGetTensorImpl()) > 0;
}

bool ScaledMarks::has_any(const std::vector<at::Tensor>& parameters) const {
  return std::any_of(parameters.begin(), parameters.end(), [this](const at::Tensor& parameter) {
    return parameter.defined() && parameter.grad().defined() &&
           marked_.count(parameter.unsafeGetTensorImpl()) > 0;
  });
}

std::optional<double> report_scale_left_in(const std::vector<at::Tensor>& parameters) {
  if (registry().num_marks.load(std::memory_order_relaxed) == 0) {
    return std::nullopt;
  }
  // Kept beyond the lock: the last reference to an owner must not end under it.
  std::vector<std::shared_ptr<ScaledMarks>> owners;
  std::vector<std::pair<ScaledMarks*, at::Tensor>> suspects;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& weak : registry().owners) {
      if (auto owner = weak.lock()) {
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
    const std::lock_guard lock(registry().mutex);
    owner->is_reported_ = true;
    return value;
  }
  return std::nullopt;
}

}  // namespace torchamp::multi_tensor
