#include "torchamp/amp/autocast.h"

#include <array>

#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include "torchamp/amp/cast_cache.h"
#include "torchamp/amp/policy_kernels.h"
#include "torchamp/amp/region.h"

namespace torchamp::amp {
namespace {

bool cuda_is_available() { return at::detail::getCUDAHooks().hasCUDA(); }

// Asked the way Python asks older GPUs: by making a tensor. No header of the CUDA toolkit is
// needed.
bool cuda_has_bfloat16() {
  try {
    at::full({1}, 1.0, at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA));
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

constexpr detail::DeviceFacts kThisMachine{cuda_is_available, cuda_has_bfloat16};

}  // namespace

AutocastSettings autocast_settings(at::Device device, std::optional<at::ScalarType> dtype,
                                   const AutocastOptions& options) {
  return detail::resolve(device.type(), dtype, options, kThisMachine);
}

Autocast::Autocast(at::Device device, std::optional<at::ScalarType> dtype,
                   const AutocastOptions& options)
    : Autocast(autocast_settings(device, dtype, options)) {}

Autocast::Autocast(const AutocastSettings& settings)
    : settings_(settings), region_(detail::enter_region({settings}, settings.cache_enabled)) {}

Autocast::~Autocast() { detail::leave_region(region_); }

AutocastState AutocastState::capture() {
  AutocastState state;
  state.cache_enabled_ = at::autocast::is_autocast_cache_enabled();
  for (const auto device_type : at::autocast::_AUTOCAST_SUPPORTED_DEVICES) {
    state.devices_.push_back({device_type, at::autocast::get_autocast_dtype(device_type),
                              at::autocast::is_autocast_enabled(device_type), state.cache_enabled_,
                              detail::PolicyAccess::policy(detail::active_rules(device_type))});
  }
  return state;
}

AutocastStateGuard::AutocastStateGuard(const AutocastState& state)
    : region_(detail::enter_region(state.devices_, state.cache_enabled_)) {}

AutocastStateGuard::~AutocastStateGuard() { detail::leave_region(region_); }

void clear_autocast_cache() {
  at::autocast::clear_cache();
  detail::forget_in_all_threads();
  detail::end_cast_cache();  // at once on this thread; the others do so before their next cast
}

}  // namespace torchamp::amp
