#include "torchamp/amp/custom_function.h"

#include <string>
#include <utility>

#include <ATen/autocast_mode.h>
#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

namespace torchamp::amp::detail {
namespace {

// The record of a device is an entry of the context's saved_data.
constexpr auto kKey = "torchamp.autocast.";

struct ForwardRecord : torch::CustomClassHolder {
  explicit ForwardRecord(AutocastSettings s) : settings(std::move(s)) {}
  AutocastSettings settings;
};

}  // namespace

bool record_forward(torch::autograd::AutogradContext* context, at::Device device,
                    std::optional<at::ScalarType> cast_inputs) {
  TORCH_CHECK(context != nullptr,
              "[custom_fwd] The context is null; the one that forward() was called with is "
              "accepted.");
  TORCH_CHECK(!cast_inputs.has_value() || c10::isFloatingType(*cast_inputs),
              "[custom_fwd] cast_inputs is ", *cast_inputs,
              "; a floating dtype is accepted, since only floating inputs are cast.");
  auto settings = autocast_settings(device, std::nullopt, {.enabled = false});
  const bool is_enabled = at::autocast::is_autocast_enabled(device.type());
  settings.enabled = is_enabled && !cast_inputs.has_value();
  context->saved_data[kKey + c10::DeviceTypeName(device.type(), /*lower_case=*/true)] =
      at::IValue::make_capsule(c10::make_intrusive<ForwardRecord>(std::move(settings)));
  return is_enabled && cast_inputs.has_value();
}

void cast_input(at::Tensor& tensor, at::DeviceType device_type, at::ScalarType dtype) {
  if (tensor.defined() && tensor.device().type() == device_type && tensor.is_floating_point() &&
      tensor.scalar_type() != at::kDouble) {
    tensor = tensor.to(dtype);
  }
}

ForwardStateGuard::ForwardStateGuard(const torch::autograd::AutogradContext* context) {
  TORCH_CHECK(context != nullptr,
              "[custom_bwd] The context is null; the one that backward() was called with is "
              "accepted.");
  for (const auto& [key, value] : context->saved_data) {
    if (key.rfind(kKey, 0) == 0) {
      auto settings = static_cast<const ForwardRecord&>(*value.toCapsule()).settings;
      settings.cache_enabled = at::autocast::is_autocast_cache_enabled();
      regions_.push_back(std::make_unique<Autocast>(settings));
    }
  }
  TORCH_CHECK(!regions_.empty(),
              "[custom_bwd] The context holds no record of its forward; a context that custom_fwd "
              "was called with is accepted. Does forward() call custom_fwd, and has saved_data "
              "been cleared?");
}

ForwardStateGuard::~ForwardStateGuard() {
  while (!regions_.empty()) {
    regions_.pop_back();
  }
}

}  // namespace torchamp::amp::detail
