#include "torchamp/amp/cast_cache.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include <ATen/CachedTensorUtils.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace torchamp::amp::detail {
namespace {

std::atomic<uint64_t> current_epoch{0};

constexpr c10::DispatchKeySet kWrapped(
    {c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched,
     c10::DispatchKey::FuncTorchVmapMode, c10::DispatchKey::FuncTorchDynamicLayerFrontMode,
     c10::DispatchKey::Functionalize, c10::DispatchKey::Python, c10::DispatchKey::Conjugate,
     c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});

// Whether a cast of `tensor` may be kept at all, as far as its own kind goes.
bool is_plain(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.layout() == at::kStrided &&
         !tensor.is_inference() && !tensor.is_nested() && !tensor.key_set().has_any(kWrapped) &&
         tensor.has_storage() && !at::caching::is_cached_tensor(tensor);
}

bool has_no_hooks(torch::autograd::Node& node) {
  return node.pre_hooks().empty() && node.post_hooks().empty() && node.tensor_pre_hooks().empty() &&
         node.retains_grad_hooks().empty();
}

// The leaf of which `view` is nothing but the transpose, so that transposing the leaf's cast is the
// same as casting the view; undefined otherwise. Hooks on the view need the view's own history.
at::Tensor leaf_behind_transpose(const at::Tensor& view) {
  if (view.dim() != 2 || !view.is_view()) {
    return {};
  }
  at::Tensor base(view._base());
  if (base.dim() != 2 || !is_plain(base) || !base.is_leaf() || base.is_view() ||
      view.size(0) != base.size(1) || view.size(1) != base.size(0) ||
      view.stride(0) != base.stride(1) || view.stride(1) != base.stride(0) ||
      view.storage_offset() != base.storage_offset()) {
    return {};
  }
  if (view.requires_grad() && at::GradMode::is_enabled()) {
    const auto& node = view.grad_fn();
    if (node == nullptr || node->num_inputs() != 1 || node->next_edges().size() != 1 ||
        (node->name() != "TBackward0" && node->name() != "TransposeBackward0") ||
        node->next_edge(0).function != torch::autograd::impl::grad_accumulator(base) ||
        !has_no_hooks(*node)) {
      return {};
    }
  }
  return base;
}

}  // namespace

size_t CastCache::KeyHash::operator()(const Key& key) const {
  return std::hash<const void*>()(key.source) ^ (static_cast<size_t>(key.dtype) << 1U);
}

CastCache::Entry::Entry(const at::Tensor& tensor)
    : source(tensor.getIntrusivePtr()),
      storage(tensor.storage().getWeakStorageImpl()),
      storage_offset(tensor.storage_offset()),
      sizes(tensor.sizes()),
      strides(tensor.strides()),
      version(tensor.unsafeGetTensorImpl()->version_counter().current_version()) {}

bool CastCache::Entry::is_current(const at::Tensor& tensor) const {
  const bool is_spent =
      with_history.spent != nullptr && with_history.spent->load(std::memory_order_acquire);
  return !is_spent &&
         version == tensor.unsafeGetTensorImpl()->version_counter().current_version() &&
         storage._unsafe_get_target() == tensor.storage().unsafeGetStorageImpl() &&
         storage_offset == tensor.storage_offset() && tensor.sizes() == sizes &&
         tensor.strides() == strides;
}

// A cast with history holds the leaf that its gradient goes to: when nobody else does, it is gone.
bool CastCache::Entry::is_gone() const {
  const auto owners = source.use_count();
  return owners == 0 || (owners == 1 && with_history.value.defined());
}

at::Tensor CastCache::cast(const at::Tensor& source, at::ScalarType dtype, bool keep_without_grad) {
  if ((keep_without_grad || source.requires_grad()) && is_plain(source)) {
    const bool wants_history = source.requires_grad() && at::GradMode::is_enabled();
    if (!source.is_view()) {
      if (source.is_leaf()) {
        return kept(source, false, wants_history, dtype);
      }
    } else if (const at::Tensor leaf = leaf_behind_transpose(source); leaf.defined()) {
      return kept(leaf, true, wants_history, dtype);
    }
  }
  return source.to(dtype);
}

at::Tensor CastCache::kept(const at::Tensor& owner, bool transposed, bool wants_history,
                           at::ScalarType dtype) {
  const uint64_t epoch = current_epoch.load(std::memory_order_acquire);
  if (epoch != epoch_) {
    entries_.clear();
    keys_.clear();
    epoch_ = epoch;
  }
  const Key key{owner.unsafeGetTensorImpl(), dtype};
  auto found = entries_.find(key);
  if (found == entries_.end()) {
    drop_the_gone();
    found = entries_.emplace(key, Entry(owner)).first;
    keys_.push_back(key);
  } else if (!found->second.is_current(owner)) {
    found->second = Entry(owner);
  }
  Entry& entry = found->second;
  const auto is_intact = [](const Cast& cast) {
    return cast.value.defined() && cast.version == cast.value._version();
  };
  // In no-grad mode a cast with history serves, too. Elsewhere it would lead gradients to a tensor
  // that does not require them now; the other way round backward() would be cut off.
  const bool takes_history =
      wants_history || (!at::GradMode::is_enabled() && is_intact(entry.with_history));
  Cast& cast = takes_history ? entry.with_history : entry.without_history;
  if (!is_intact(cast)) {
    // Inference tensors cannot be saved for backward(), and a later op may want to.
    const c10::InferenceMode normal_tensors(false);
    const at::AutoGradMode history(wants_history);
    cast = {owner.to(dtype), {}, 0, nullptr};
    cast.version = cast.value._version();
    if (wants_history) {
      cast.spent = std::make_shared<std::atomic<bool>>(false);
      cast.value.register_hook([spent = cast.spent](const at::Tensor&) {
        spent->store(true, std::memory_order_release);
      });
    }
  }
  if (!transposed) {
    return cast.value;
  }
  if (!cast.transposed.defined()) {
    const c10::InferenceMode normal_tensors(false);
    const at::AutoGradMode history(cast.value.requires_grad());
    cast.transposed = cast.value.t();
  }
  return cast.transposed;
}

// Looks at a few only, so that a cast costs the same however many weights there are: the newest,
// where the inputs of the last ops are, and the next ones of the others.
void CastCache::drop_the_gone() {
  constexpr size_t kLooks = 8;
  for (size_t look = 0; look < 2 * kLooks && !keys_.empty(); ++look) {
    const size_t newest = keys_.size() - 1 - std::min(look, keys_.size() - 1);
    const size_t at = look < kLooks ? newest : ++cursor_ % keys_.size();
    const auto found = entries_.find(keys_[at]);
    if (!found->second.is_gone()) {
      continue;
    }
    entries_.erase(found);
    keys_[at] = keys_.back();
    keys_.pop_back();
  }
}

size_t CastCache::size() const {
  size_t count = 0;
  for (const auto& [key, entry] : entries_) {
    count += (entry.with_history.value.defined() ? 1 : 0) +
             (entry.without_history.value.defined() ? 1 : 0);
  }
  return count;
}

void forget_in_all_threads() { current_epoch.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace torchamp::amp::detail
