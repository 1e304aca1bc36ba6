#pragma once
// Callables and modules that take this thread's autocast state along to whatever thread runs them:
// data-loader workers, at::parallel_for, parallel_apply, data_parallel.

#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "torchamp/amp/autocast.h"

namespace torchamp::amp {

/// What with_autocast_state() returns for a callable: `F`, run in the state of the thread and the
/// moment that it was wrapped in.
template <typename F>
class WithAutocastState {
 public:
  explicit WithAutocastState(F f) : state_(AutocastState::capture()), f_(std::move(f)) {}

  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    const AutocastStateGuard guard(state_);
    return std::invoke(f_, std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) const {
    const AutocastStateGuard guard(state_);
    return std::invoke(f_, std::forward<Args>(args)...);
  }

 private:
  AutocastState state_;
  F f_;
};

/// What with_autocast_state() returns for a module: a module that holds the wrapped one as its
/// child "module" (the same, not a copy) and runs its forward in the state of the thread and the
/// moment that it was wrapped in. Its clones keep the state.
template <typename M>
class ModuleWithAutocastState : public torch::nn::Module {
 public:
  explicit ModuleWithAutocastState(std::shared_ptr<M> module)
      : ModuleWithAutocastState(std::move(module), AutocastState::capture()) {}

  template <typename... Args>
  decltype(auto) forward(Args&&... args) {
    const AutocastStateGuard guard(state_);
    return module_->forward(std::forward<Args>(args)...);
  }

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& device = std::nullopt) const override {
    auto copy = std::dynamic_pointer_cast<M>(module_->clone(device));
    return std::shared_ptr<ModuleWithAutocastState>(
        new ModuleWithAutocastState(std::move(copy), state_));
  }

 private:
  ModuleWithAutocastState(std::shared_ptr<M> module, AutocastState state)
      : state_(std::move(state)), module_(std::move(module)) {
    train(module_->is_training());  // itself alone, as long as it has no child
    register_module("module", module_);
  }

  AutocastState state_;
  std::shared_ptr<M> module_;
};

namespace detail {
template <typename T>
struct ModuleOf {};
template <typename M>
requires std::is_base_of_v<torch::nn::Module, M>
struct ModuleOf<std::shared_ptr<M>> {
  using type = M;
};
template <typename T>
requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>
struct ModuleOf<T> {
  using type = typename std::decay_t<decltype(std::declval<const T&>().ptr())>::element_type;
};
template <typename T>
concept ModulePointer = requires {
  typename ModuleOf<std::decay_t<T>>::type;
};

template <typename T>
struct IsVectorOfModules : std::false_type {};
template <ModulePointer T, typename A>
struct IsVectorOfModules<std::vector<T, A>> : std::true_type {};
template <typename T>
concept VectorOfModules = IsVectorOfModules<std::decay_t<T>>::value;
}  // namespace detail

/// A callable that runs `f` in the autocast state that this thread has now, on whatever thread it
/// is called; states nest as regions do.
///
/// Wrap inside the region and where the work is handed over: the state is not looked at again.
/// Threads: may be called from several threads at once, as far as `f` may.
/// Example: docs/threads.md
template <typename F>
requires(!detail::ModulePointer<F> && !detail::VectorOfModules<F>)
    WithAutocastState<std::decay_t<F>> with_autocast_state(F&& f) {
  return WithAutocastState<std::decay_t<F>>(std::forward<F>(f));
}

/// The same for a module, given as a module holder or a shared pointer:
/// `data_parallel(with_autocast_state(net), input)`. Cheap: parameters are shared.
template <detail::ModulePointer T>
auto with_autocast_state(const T& module) {
  using M = typename detail::ModuleOf<std::decay_t<T>>::type;
  if constexpr (std::is_base_of_v<torch::detail::ModuleHolderIndicator, T>) {
    return std::make_shared<ModuleWithAutocastState<M>>(module.ptr());
  } else {
    return std::make_shared<ModuleWithAutocastState<M>>(module);
  }
}

/// The same for the replicas that parallel_apply() takes.
template <detail::ModulePointer T>
auto with_autocast_state(const std::vector<T>& modules) {
  std::vector<decltype(with_autocast_state(modules.front()))> wrapped;
  wrapped.reserve(modules.size());
  for (const auto& module : modules) {
    wrapped.push_back(with_autocast_state(module));
  }
  return wrapped;
}

}  // namespace torchamp::amp
