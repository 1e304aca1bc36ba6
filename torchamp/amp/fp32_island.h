#pragma once
// fp32_island(): a part of a model that computes in float32 inside of an autocast region.

#include <concepts>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <c10/core/Device.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/custom_function.h"
#include "torchamp/amp/tensor_tree.h"

namespace torchamp::amp {

/// Calls `f(inputs...)` with autocast off for `device` and with the floating inputs cast to
/// float32; returns what it returns.
///
/// A nested region with enabled = false alone leaves 16-bit activations 16-bit, so that they meet
/// float32 weights: an error at best. AutocastPolicy::fp32_modules() does the same for modules by
/// path, without a change to the model, op by op.
///
/// Dtypes:  float16, bfloat16 and the like on that device type become float32; float64, integer,
///          bool and complex tensors, those of other devices and what is no tensor pass.
/// Shapes:  tensors inside std::optional, vector, array, pair, tuple and the values of maps, nested
///          at will, and at::TensorList, which becomes a vector.
/// Errors:  c10::Error for a device type without autocast.
/// Example: auto logits = fp32_island(device, [&](auto x) { return head->forward(x); }, hidden);
template <typename F, typename... Inputs>
requires std::invocable<F, Inputs...>
auto fp32_island(at::Device device, F&& f, Inputs&&... inputs)
    -> std::invoke_result_t<F, Inputs...> {
  const Autocast off(device, std::nullopt, {.enabled = false});
  return detail::call_with_cast_inputs(device.type(), at::kFloat, std::forward<F>(f),
                                       std::forward<Inputs>(inputs)...);
}

}  // namespace torchamp::amp
