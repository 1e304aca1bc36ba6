#pragma once
// Autocast: the guard that makes listed ops run in bf16 or fp16 while it lives, its form for
// callables, and carrying the state to another thread. Which op is listed is LibTorch's business.

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "torchamp/amp/autocast_policy.h"
#include "torchamp/base/export.h"

namespace torchamp::amp {

namespace detail {
struct Region;
}

struct AutocastOptions {
  /// Off makes a region in which every op runs in the types of its inputs.
  bool enabled = true;
  /// Whether casts of parameters are kept for the rest of the region; the current setting when not
  /// given.
  std::optional<bool> cache_enabled = std::nullopt;
  /// Which op runs in which type. Not given: that of the enabled region around it on this thread,
  /// and outside of any LibTorch's own rules.
  std::optional<AutocastPolicy> policy = std::nullopt;
};

/// What a region will set: an Autocast request with its defaults filled in and its rules checked.
struct AutocastSettings {
  at::DeviceType device_type = at::kCPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;
  bool cache_enabled = true;
  AutocastPolicy policy = AutocastPolicy::none();
};

/// Fills in and checks a request, at this moment and for this thread.
///
/// A dtype that is not given is the thread's current one for the device, so inside an fp16 region
/// it is fp16; outside of any it is bf16 on CPU and fp16 on CUDA. What cannot work here becomes a
/// region that is switched off, with one warning: CUDA where there is none; on other devices than
/// CUDA a dtype beside BFloat16 and Half.
///
/// Errors: c10::Error for a device type without autocast, and for bf16 on a GPU that lacks it;
///         c10::ValueError for a policy of another device type.
TORCHAMP_API AutocastSettings autocast_settings(at::Device device,
                                                std::optional<at::ScalarType> dtype = std::nullopt,
                                                const AutocastOptions& options = {});

/// Runs the ops of its scope in mixed precision: LibTorch's own thread-local autocast state is set
/// on construction and what was before comes back on destruction, also when an exception passes.
///
/// Regions nest, in any mixture of devices, dtypes and enabled flags. Destroyed out of order, a
/// region hands what it saved to the next one inside it, so the state is always that of the
/// innermost region still alive, and the first state once all are gone.
///
/// Casts of weights are kept for reuse until the thread's outermost region ends, by tensor and
/// dtype: of float32 leaf tensors, frozen ones too, and of their transposes, which
/// torch::nn::Linear makes. A weight that was written since is cast again; only a write through
/// `data()` or to raw memory cannot be seen: call clear_autocast_cache() after such.
/// GradScaler::step() does.
///
/// Threads: the state belongs to the constructing thread; new threads start without (AutocastState
///          carries it over). Destroyed on another thread, the region changes nothing there and
///          warns; it ends when its own thread next opens or closes a region.
/// Source:  PyTorch torch/amp/autocast_mode.py; differences in docs/differences.md.
/// Example: examples/five_lines.cpp
class TORCHAMP_API Autocast {
 public:
  /// See autocast_settings() for the defaults, warnings and errors.
  [[nodiscard]] explicit Autocast(at::Device device,
                                  std::optional<at::ScalarType> dtype = std::nullopt,
                                  const AutocastOptions& options = {});
  /// A region of settings that were filled in before.
  [[nodiscard]] explicit Autocast(const AutocastSettings& settings);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  Autocast(Autocast&&) = delete;
  Autocast& operator=(Autocast&&) = delete;

  /// Whether ops are cast: false also when the request had to be switched off.
  bool enabled() const { return settings_.enabled; }
  at::ScalarType dtype() const { return settings_.dtype; }
  at::DeviceType device_type() const { return settings_.device_type; }

 private:
  AutocastSettings settings_;
  detail::Region* region_;
};

/// What autocast() returns: `F`, run inside a region of its own on every call.
template <typename F>
class AutocastCallable {
 public:
  AutocastCallable(AutocastSettings settings, F f)
      : settings_(std::move(settings)), f_(std::move(f)) {}

  template <typename... Args>
  decltype(auto) operator()(Args&&... args) {
    const Autocast region(settings_);
    return std::invoke(f_, std::forward<Args>(args)...);
  }
  template <typename... Args>
  decltype(auto) operator()(Args&&... args) const {
    const Autocast region(settings_);
    return std::invoke(f_, std::forward<Args>(args)...);
  }

 private:
  AutocastSettings settings_;
  F f_;
};

/// A callable that runs `f` inside a region of its own on every call, recursive calls included. The
/// settings are filled in, and warned about, here and once.
template <typename F>
AutocastCallable<std::decay_t<F>> autocast(at::Device device, std::optional<at::ScalarType> dtype,
                                           F&& f, const AutocastOptions& options = {}) {
  return {autocast_settings(device, dtype, options), std::forward<F>(f)};
}

/// A thread's autocast state of every device, to be set on another thread.
class TORCHAMP_API AutocastState {
 public:
  /// The state of the calling thread, now.
  static AutocastState capture();

 private:
  friend class AutocastStateGuard;
  std::vector<AutocastSettings> devices_;
  bool cache_enabled_ = true;
};

/// Gives the calling thread a captured state for the guard's lifetime; nests with Autocast regions
/// and follows the same rules.
///
/// Example: examples/autocast_in_threads.cpp
class TORCHAMP_API AutocastStateGuard {
 public:
  [[nodiscard]] explicit AutocastStateGuard(const AutocastState& state);
  ~AutocastStateGuard();
  AutocastStateGuard(const AutocastStateGuard&) = delete;
  AutocastStateGuard& operator=(const AutocastStateGuard&) = delete;
  AutocastStateGuard(AutocastStateGuard&&) = delete;
  AutocastStateGuard& operator=(AutocastStateGuard&&) = delete;

 private:
  detail::Region* region_;
};

/// Drops every cast that autocast has kept, in all threads; to be called after weights were changed
/// inside a region. Cheap when there is none.
TORCHAMP_API void clear_autocast_cache();

}  // namespace torchamp::amp
