#pragma once
// Activation checkpointing: a part of a model whose activations are dropped after forward and
// computed again in backward. Which parts are worth it is the caller's business.

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "torchamp/amp/tensor_tree.h"
#include "torchamp/base/export.h"

namespace torchamp::amp {

namespace detail {

/// The checkpointed part, run on the tensors among its inputs; gives the tensors of its result.
using CheckpointFunction =
    std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

/// One checkpoint under way: made before the function runs, finished after.
class TORCHAMP_API CheckpointRecorder {
 public:
  /// Records what recomputing needs: autocast state, random generators, the inputs.
  explicit CheckpointRecorder(std::vector<at::Tensor> inputs);
  ~CheckpointRecorder();
  CheckpointRecorder(const CheckpointRecorder&) = delete;
  CheckpointRecorder& operator=(const CheckpointRecorder&) = delete;
  CheckpointRecorder(CheckpointRecorder&&) = delete;
  CheckpointRecorder& operator=(CheckpointRecorder&&) = delete;

  /// Takes the function's graph off its outputs and puts one node in its place, which runs
  /// `function` again in backward.
  void finish(std::vector<at::Tensor>& outputs, CheckpointFunction function);

 private:
  struct Record;
  std::unique_ptr<Record> record_;
};

/// A function with all of its arguments but the tensors.
template <typename F, typename... Inputs>
struct CheckpointBody {
  using Arguments = std::tuple<Inputs...>;
  static constexpr bool kTakesLvalues = std::is_invocable_v<F&, Inputs&...>;

  static auto call(F& function, Arguments arguments) {
    return std::apply(
        [&function](auto&... argument) {
          if constexpr (kTakesLvalues) {
            return std::invoke(function, argument...);
          } else {
            return std::invoke(function, std::move(argument)...);
          }
        },
        arguments);
  }

  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& inputs) {
    Arguments filled = arguments;
    replace_tensors(filled, inputs);
    auto result = call(function, std::move(filled));
    return tensors_of(result);
  }

  template <typename T>
  static std::vector<at::Tensor> tensors_of(T& value) {
    std::vector<at::Tensor> tensors;
    const auto collect = [&tensors](const at::Tensor& tensor) { tensors.push_back(tensor); };
    visit_tensors(value, collect);
    return tensors;
  }

  template <typename T>
  static void replace_tensors(T& value, const std::vector<at::Tensor>& tensors) {
    auto next = tensors.begin();
    const auto replace = [&next](at::Tensor& tensor) { tensor = *next++; };
    visit_tensors(value, replace);
  }

  F function;
  Arguments arguments;
};

}  // namespace detail

/// Returns `f(inputs...)`, with f's activations dropped: backward() runs f once more, in the same
/// autocast state and with the same random numbers, and gives the gradients that it would have
/// given without, bit for bit. (Where a tensor is used both inside, more than once, and after, the
/// same gradients are summed in another order.)
///
/// `f` is kept until backward, so it must own what it uses: let a lambda capture modules by value
/// (LibTorch's are shared pointers). Parameters and other tensors that f captures get their
/// gradients like inputs do, also when no input requires one. f may hold further checkpoints.
/// Gradients of gradients (create_graph), torch::autograd::grad and hooks work as without. When
/// nothing requires a gradient, or inside of NoGradGuard, f simply runs.
///
/// f must do in backward what it did in forward. BatchNorm's running statistics are updated twice,
/// as in Python. Random numbers come from the default generators of the CPU and of the CUDA devices
/// in use; after backward's run of f they go on from where they were.
///
/// Shapes:  f takes and gives tensors in any number, bare or inside of std::optional, vector,
/// array,
///          pair, tuple and map values; at::TensorList and IntArrayRef arguments are copied. Other
///          arguments pass through; they must be copyable.
/// Dtypes:  any. An output that is an input, or shares its memory, is returned as a copy.
/// Devices: those of the tensors. Keeps the inputs, and 5 KB for the CPU generator's state.
/// Errors:  c10::Error at once when f changes an input in place or an input carries a forward-mode
///          tangent; in backward when f or its inputs are not as they were: outputs that differ in
///          number, shape, dtype or device, other parameters, a parameter changed in place, and a
///          second backward() after one without retain_graph.
/// Threads: f must build its graph on the calling thread; a graph built on others is refused.
/// Source:  Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost"; PyTorch
///          torch/utils/checkpoint.py.
/// Example: examples/activation_checkpoint.cpp
template <typename F, typename... Inputs>
auto activation_checkpoint(F&& f, Inputs&&... inputs) {
  using Body = detail::CheckpointBody<std::decay_t<F>, detail::Owned<Inputs>...>;
  static_assert((std::is_copy_constructible_v<detail::Owned<Inputs>> && ...),
                "activation_checkpoint: every input must be copyable, since f runs twice");
  auto body = std::make_shared<Body>(
      Body{std::forward<F>(f), {detail::own(std::forward<Inputs>(inputs))...}});
  using Result = decltype(Body::call(body->function, body->arguments));
  static_assert(
      detail::TensorsIn<Result>::kAny,
      "activation_checkpoint: f must return a tensor, or a standard container of tensors");
  if (!c10::GradMode::is_enabled()) {
    return Body::call(body->function, std::move(body->arguments));
  }
  auto tensors = Body::tensors_of(body->arguments);
  const auto num_tensors = tensors.size();
  detail::CheckpointRecorder recorder(std::move(tensors));
  Result result = Body::call(body->function, body->arguments);
  Body::replace_tensors(body->arguments, std::vector<at::Tensor>(num_tensors));
  auto outputs = Body::tensors_of(result);
  recorder.finish(outputs, [body](const std::vector<at::Tensor>& again) { return (*body)(again); });
  Body::replace_tensors(result, outputs);
  return result;
}

}  // namespace torchamp::amp
