#include "torchamp/amp/region.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/autocast_mode.h>
#include <c10/util/Exception.h>

#include "torchamp/amp/policy_kernels.h"

namespace torchamp::amp::detail {
namespace {

// The innermost region of this thread. A plain pointer, so that regions in static storage can still
// be destroyed after the thread's other thread-local objects are gone.
thread_local Region* innermost = nullptr;

AutocastSettings current_state(at::DeviceType device_type) {
  return {device_type, at::autocast::get_autocast_dtype(device_type),
          at::autocast::is_autocast_enabled(device_type), at::autocast::is_autocast_cache_enabled(),
          PolicyAccess::policy(active_rules(device_type))};
}

void apply(const AutocastSettings& state) {
  at::autocast::set_autocast_enabled(state.device_type, state.enabled);
  at::autocast::set_autocast_dtype(state.device_type, state.dtype);
  set_active_rules(state.device_type, PolicyAccess::rules(state.policy));
}

bool any_enabled(const std::vector<AutocastSettings>& states) {
  return std::any_of(states.begin(), states.end(),
                     [](const AutocastSettings& state) { return state.enabled; });
}

const AutocastSettings* state_of(const std::vector<AutocastSettings>& states,
                                 at::DeviceType device_type) {
  for (const auto& state : states) {
    if (state.device_type == device_type) {
      return &state;
    }
  }
  return nullptr;
}

// The dtype of the casts that the cache may hold for this device: that of the nearest enabled
// state, disabled regions between being no hindrance.
std::optional<at::ScalarType> cached_dtype(at::DeviceType device_type) {
  if (at::autocast::is_autocast_enabled(device_type)) {
    return at::autocast::get_autocast_dtype(device_type);
  }
  for (const Region* region = innermost; region != nullptr; region = region->below) {
    const auto* set = state_of(region->set, device_type);
    if (set != nullptr && set->enabled) {
      return set->dtype;
    }
    const auto* saved = state_of(region->saved, device_type);
    if (saved != nullptr && saved->enabled) {
      return saved->dtype;
    }
  }
  return std::nullopt;
}

// Ends a region of this thread, wherever in the stack it is.
void remove(Region* region) {
  Region** link = &innermost;
  Region* above = nullptr;
  while (*link != region) {
    above = *link;
    link = &above->below;
  }
  *link = region->below;
  if (at::autocast::decrement_nesting() == 0 || any_enabled(region->set) || above != nullptr) {
    at::autocast::clear_cache();
  }
  for (const auto& saved : region->saved) {
    // The heir is the lowest region above that governs the same device.
    AutocastSettings* heir = nullptr;
    for (Region* r = above == nullptr ? region->below : innermost; r != region->below;
         r = r->below) {
      for (auto& candidate : r->saved) {
        if (candidate.device_type == saved.device_type) {
          heir = &candidate;
        }
      }
    }
    if (heir != nullptr) {
      *heir = saved;
    } else {
      apply(saved);
    }
  }
  if (above != nullptr) {
    above->saved_cache_enabled = region->saved_cache_enabled;
  } else {
    at::autocast::set_autocast_cache_enabled(region->saved_cache_enabled);
  }
  delete region;
  if (innermost == nullptr) {
    end_cast_cache();
  }
}

// That of the innermost enabled region for the device, if there is one.
std::optional<AutocastPolicy> policy_around(at::DeviceType device_type) {
  for (const Region* region = innermost; region != nullptr; region = region->below) {
    const auto* set = state_of(region->set, device_type);
    if (set != nullptr && set->enabled) {
      return set->policy;
    }
  }
  return std::nullopt;
}

void remove_abandoned() {
  for (Region* region = innermost; region != nullptr;) {
    Region* below = region->below;
    if (region->abandoned.load(std::memory_order_acquire)) {
      remove(region);
    }
    region = below;
  }
}

}  // namespace

Region* enter_region(std::vector<AutocastSettings> states, bool cache_enabled) {
  // LibTorch's cache is a function-local static: made before the first region is complete, it is
  // destroyed after every region in static storage.
  static const bool cache_exists = (at::autocast::clear_cache(), true);
  static_cast<void>(cache_exists);
  remove_abandoned();

  auto region = std::make_unique<Region>();
  region->saved_cache_enabled = at::autocast::is_autocast_cache_enabled();
  region->saved.reserve(states.size());
  bool changes_dtype = false;
  for (const auto& state : states) {
    region->saved.push_back(current_state(state.device_type));
    const auto cached = cached_dtype(state.device_type);
    changes_dtype |= state.enabled && cached.has_value() && *cached != state.dtype;
  }
  region->set = std::move(states);
  if (changes_dtype) {
    at::autocast::clear_cache();  // LibTorch keys a cast by tensor alone, not by dtype
  }
  for (const auto& state : region->set) {
    apply(state);
  }
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(cache_enabled);
  region->below = innermost;
  innermost = region.release();
  return innermost;
}

void leave_region(Region* region) {
  const Region* mine = innermost;
  while (mine != nullptr && mine != region) {
    mine = mine->below;
  }
  if (mine == nullptr) {
    region->abandoned.store(true, std::memory_order_release);
    TORCH_WARN(
        "[Autocast] A region was destroyed on another thread than the one that opened it; this "
        "thread's state is left alone, and the region ends when its own thread next opens or "
        "closes one. Keep Autocast objects in the scope of one thread.");
    return;
  }
  remove(region);
  remove_abandoned();
}

AutocastSettings resolve(at::DeviceType device_type, std::optional<at::ScalarType> dtype,
                         const AutocastOptions& options, const DeviceFacts& facts) {
  TORCH_CHECK(at::autocast::is_autocast_available(device_type),
              "[Autocast] User specified an unsupported autocast device_type '",
              c10::DeviceTypeName(device_type, /*lower_case=*/true),
              "'; cpu, cuda, mtia, maia, xpu, ipu, hpu, xla, mps and a private backend are "
              "accepted.");
  TORCH_CHECK_VALUE(
      !options.policy || !*options.policy || options.policy->device_type() == device_type,
      "[Autocast] The policy is one for ",
      c10::DeviceTypeName(options.policy->device_type(), /*lower_case=*/true),
      ", but the region is for ", c10::DeviceTypeName(device_type, /*lower_case=*/true),
      "; make it with AutocastPolicy::libtorch() or strict() of the region's device type.");
  AutocastSettings settings;
  settings.device_type = device_type;
  settings.dtype = dtype.value_or(at::autocast::get_autocast_dtype(device_type));
  settings.enabled = options.enabled;
  settings.cache_enabled =
      options.cache_enabled.value_or(at::autocast::is_autocast_cache_enabled());
  if (!settings.enabled) {
    settings.policy = PolicyAccess::policy(active_rules(device_type));
    return settings;
  }
  if (device_type == at::kCUDA) {
    if (!facts.cuda_is_available()) {
      TORCH_WARN("CUDA is not available or torch_xla is imported. Disabling autocast.");
      settings.enabled = false;
    } else {
      TORCH_CHECK(settings.dtype != at::kBFloat16 || facts.cuda_has_bfloat16(),
                  "[Autocast] Current CUDA Device does not support bfloat16. Please switch dtype "
                  "to float16.");
    }
  } else if (settings.dtype != at::kBFloat16 && settings.dtype != at::kHalf) {
    const std::string name = c10::DeviceTypeName(device_type);
    TORCH_WARN("In ", name,
               " autocast, but the target dtype is not supported. Disabling autocast.\n", name,
               " Autocast only supports dtypes of torch.bfloat16, torch.float16 currently.");
    settings.enabled = false;
  }
  if (!settings.enabled) {
    settings.policy = PolicyAccess::policy(active_rules(device_type));
  } else if (options.policy.has_value()) {
    settings.policy = *options.policy;
  } else {
    const auto around = policy_around(device_type);
    settings.policy = around.has_value() ? *around : AutocastPolicy::libtorch(device_type);
  }
  return settings;
}

}  // namespace torchamp::amp::detail
