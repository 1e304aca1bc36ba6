#pragma once
// The stack of a thread's autocast regions, over LibTorch's thread-local state. Internal: Autocast
// and AutocastStateGuard are its two users.

#include <atomic>
#include <vector>

#include "torchamp/amp/autocast.h"

namespace torchamp::amp::detail {

/// One live region: what it set, what was before, and the region around it.
struct Region {
  std::vector<AutocastSettings> set;
  std::vector<AutocastSettings> saved;  // same devices in the same order
  bool saved_cache_enabled = true;
  Region* below = nullptr;
  std::atomic<bool> abandoned = false;  // its guard was destroyed on another thread
};

/// Starts a region on this thread that sets `states` (each device at most once).
Region* enter_region(std::vector<AutocastSettings> states, bool cache_enabled);

/// Ends a region and frees it; on a thread that does not own it, marks it and warns.
void leave_region(Region* region);

/// What the rules need to know about the machine; a parameter so that tests can play any machine.
struct DeviceFacts {
  bool (*cuda_is_available)();
  bool (*cuda_has_bfloat16)();
};

TORCHAMP_API AutocastSettings resolve(at::DeviceType device_type,
                                      std::optional<at::ScalarType> dtype,
                                      const AutocastOptions& options, const DeviceFacts& facts);

}  // namespace torchamp::amp::detail
