#pragma once
// Autocast for the authors of a torch::autograd::Function: forward's state, recorded and entered
// again in backward. The counterpart of Python's torch.amp.custom_fwd and custom_bwd.

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/tensor_tree.h"
#include "torchamp/base/export.h"

namespace torch::autograd {
struct AutogradContext;
}

namespace torchamp::amp {

namespace detail {

/// Writes the state for `device` into the context; the state that custom_bwd will enter is off when
/// `cast_inputs` is given. Returns whether the inputs are to be cast.
TORCHAMP_API bool record_forward(torch::autograd::AutogradContext* context, at::Device device,
                                 std::optional<at::ScalarType> cast_inputs);

/// Casts a floating tensor of that device type that is not float64; leaves any other.
TORCHAMP_API void cast_input(at::Tensor& tensor, at::DeviceType device_type, at::ScalarType dtype);

/// `f(inputs...)` with the inputs' tensors cast: of f's own copies of them.
template <typename F, typename... Inputs>
auto call_with_cast_inputs(at::DeviceType device_type, at::ScalarType dtype, F&& f,
                           Inputs&&... inputs) -> std::invoke_result_t<F, Inputs...> {
  std::tuple<Owned<Inputs>...> cast(own(std::forward<Inputs>(inputs))...);
  const auto cast_one = [&](at::Tensor& tensor) { cast_input(tensor, device_type, dtype); };
  visit_tensors(cast, cast_one);
  return std::apply(
      [&f](auto&... values) -> std::invoke_result_t<F, Inputs...> {
        if constexpr (std::invocable<F, decltype(values)...>) {
          return std::invoke(std::forward<F>(f), values...);
        } else {
          return std::invoke(std::forward<F>(f), std::move(values)...);
        }
      },
      cast);
}

/// The recorded states of a context, entered for the lifetime.
class TORCHAMP_API ForwardStateGuard {
 public:
  explicit ForwardStateGuard(const torch::autograd::AutogradContext* context);
  ~ForwardStateGuard();
  ForwardStateGuard(const ForwardStateGuard&) = delete;
  ForwardStateGuard& operator=(const ForwardStateGuard&) = delete;
  ForwardStateGuard(ForwardStateGuard&&) = delete;
  ForwardStateGuard& operator=(ForwardStateGuard&&) = delete;

 private:
  std::vector<std::unique_ptr<Autocast>> regions_;  // one for each recorded device
};

}  // namespace detail

/// Runs the body of a Function's forward and records in `context` whether autocast was on for
/// `device`, and its dtype, for custom_bwd. Returns what `body(inputs...)` returns.
///
/// Called twice for one context with two devices, one inside the other, it records both.
///
/// Errors:  c10::Error for a device type without autocast.
/// Source:  PyTorch torch/amp/autocast_mode.py, `custom_fwd`; what passes through the autograd
///          engine is exactly what Python passes.
/// Example: examples/custom_function.cpp
template <typename Body, typename... Inputs>
requires std::invocable<Body, Inputs...>
decltype(auto) custom_fwd(torch::autograd::AutogradContext* context, at::Device device, Body&& body,
                          Inputs&&... inputs) {
  detail::record_forward(context, device, std::nullopt);
  return std::invoke(std::forward<Body>(body), std::forward<Inputs>(inputs)...);
}

/// The same for a body that must run in one dtype: inside an enabled region `body` sees its inputs
/// cast to `cast_inputs` and runs with autocast off for `device`, and so does custom_bwd. Outside
/// of one nothing is cast.
///
/// Dtypes:  every floating tensor on that device type is cast, except float64. Integer, bool and
///          complex tensors, those of other devices, undefined ones and what is no tensor pass.
/// Shapes:  tensors inside std::optional, vector, array, pair, tuple and the values of maps, nested
///          at will, and at::TensorList, which becomes a vector.
/// Errors:  c10::Error for a device type without autocast, or a dtype that is not floating.
template <typename Body, typename... Inputs>
requires std::invocable<Body, Inputs...>
auto custom_fwd(torch::autograd::AutogradContext* context, at::Device device,
                at::ScalarType cast_inputs, Body&& body, Inputs&&... inputs)
    -> std::invoke_result_t<Body, Inputs...> {
  if (!detail::record_forward(context, device, cast_inputs)) {
    return std::invoke(std::forward<Body>(body), std::forward<Inputs>(inputs)...);
  }
  const Autocast off(device, std::nullopt, {.enabled = false});
  return detail::call_with_cast_inputs(device.type(), cast_inputs, std::forward<Body>(body),
                                       std::forward<Inputs>(inputs)...);
}

/// Runs the body of a Function's backward in the autocast state that custom_fwd recorded, whatever
/// the state around backward() is. Returns what `body(arguments...)` returns.
///
/// Errors:  c10::Error if custom_fwd was not called with this context.
/// Source:  PyTorch torch/amp/autocast_mode.py, `custom_bwd`.
template <typename Body, typename... Arguments>
requires std::invocable<Body, Arguments...>
decltype(auto) custom_bwd(const torch::autograd::AutogradContext* context, Body&& body,
                          Arguments&&... arguments) {
  const detail::ForwardStateGuard guard(context);
  return std::invoke(std::forward<Body>(body), std::forward<Arguments>(arguments)...);
}

}  // namespace torchamp::amp
