#pragma once
// The kernels behind AutocastPolicy: their registration on LibTorch's autocast keys, and what a
// thread's current policy makes them do. Internal.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/DeviceType.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "torchamp/amp/autocast_policy.h"
#include "torchamp/amp/op_rules.h"

namespace torchamp::amp::detail {

/// One op's kernel on one device's autocast key, for as long as somebody holds it.
struct Registration {
  size_t slot = 0;  ///< where policies keep this op's rule; an op's slot never changes
  c10::OperatorHandle op;
  c10::RegistrationHandleRAII handle;
};

/// The kernel of `op`, registered now or before. Silent: LibTorch would warn of the override.
std::shared_ptr<Registration> register_kernel(c10::DeviceType device_type,
                                              const c10::OperatorHandle& op);

/// The memory of a parameter or buffer. The weak reference keeps its address from being used again.
struct IslandMemory {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  int64_t offset = 0;
  int64_t numel = 0;
};

/// A policy as the kernels read it.
struct Rules : std::enable_shared_from_this<Rules> {
  c10::DeviceType device_type = c10::kCPU;
  OpRules by_name;              ///< every op that is listed
  std::vector<OpRule> by_slot;  ///< kUnknown: the kernel that was there before
  std::unordered_map<std::string, std::shared_ptr<Registration>> registrations;
  /// Tensors whose ops run in float32.
  std::unordered_map<const c10::TensorImpl*, c10::weak_intrusive_ptr<c10::TensorImpl>> islands;
  /// Where they were when the policy was made. It tells a transpose by itself from others of one
  /// buffer, and is all that tells it in inference mode, where views do not know their base.
  std::unordered_multimap<const c10::StorageImpl*, IslandMemory> island_memory;

  OpRule at(size_t slot) const { return slot < by_slot.size() ? by_slot[slot] : OpRule::kUnknown; }
};

/// From the public value to what the kernels read, and back.
struct PolicyAccess {
  static const Rules* rules(const AutocastPolicy& policy);
  static AutocastPolicy policy(const Rules* rules);
};

/// Whether the device type is one that policies have kernels for.
bool has_kernels(c10::DeviceType device_type);

/// The rules in force on this thread for CPU or CUDA; null outside of regions with a policy.
const Rules* active_rules(c10::DeviceType device_type);
/// Sets them; for the regions.
void set_active_rules(c10::DeviceType device_type, const Rules* rules);

/// Forgets this thread's kept casts; for the end of its outermost region.
void end_cast_cache();
/// Casts of weights that this thread keeps now.
TORCHAMP_API size_t num_kept_casts();

}  // namespace torchamp::amp::detail
