#pragma once
// GradScaler: scales losses so that small fp16 gradients survive, takes the scale out of the
// gradients again, and leaves out steps whose gradients are inf or NaN.

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/amp/scaler_health.h"
#include "torchamp/amp/scaler_options.h"
#include "torchamp/amp/step_outcome.h"
#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::multi_tensor {
class ScaledMarks;
}

namespace torchamp::amp {

class ScaledStep;

namespace detail {
class OptimizerState;
class ScaleState;
class StepHistory;
struct Gradient;
}  // namespace detail

/// Dynamic loss scaling for any torch::optim::Optimizer.
///
/// An iteration is: scale(loss).backward(); optionally unscale_(optimizer) and a look at the
/// gradients; step(optimizer); and once, after all optimizers, update().
///
/// Numbers: those of torch.amp.GradScaler; differences in docs/differences.md.
/// Devices: the scale lives on the device of the first loss; gradients may be on several.
/// Threads: not synchronised; use one scaler from one thread at a time.
/// Example: examples/five_lines.cpp, examples/two_optimizers.cpp
class TORCHAMP_API GradScaler {
 public:
  /// Errors: c10::ValueError naming the option, when enabled, for a value that cannot work.
  explicit GradScaler(GradScalerOptions options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  /// outputs * scale. A float16 tensor comes back as float32, where the product has room; so does a
  /// 0-dim bfloat16 one and an integer; other types keep theirs. Disabled: the same tensor.
  ///
  /// A backward pass through the result notes the parameters it reaches, so that
  /// torchamp::clip_grad_norm_ can warn when it is called before unscale_(). Disabled, a backward
  /// pass through the first output that computes in float16 is one warning.
  at::Tensor scale(const at::Tensor& outputs);
  /// The same for vectors, arrays, pairs and tuples of tensors, nested at will.
  template <typename T>
  std::vector<T> scale(const std::vector<T>& outputs) {
    std::vector<T> result;
    result.reserve(outputs.size());
    for (const auto& output : outputs) {
      result.push_back(scale(output));
    }
    return result;
  }
  template <typename T, size_t N>
  std::array<T, N> scale(const std::array<T, N>& outputs) {
    return std::apply([this](const auto&... output) { return std::array<T, N>{scale(output)...}; },
                      outputs);
  }
  template <typename... T>
  std::tuple<T...> scale(const std::tuple<T...>& outputs) {
    return std::apply([this](const auto&... output) { return std::tuple<T...>{scale(output)...}; },
                      outputs);
  }
  template <typename A, typename B>
  std::pair<A, B> scale(const std::pair<A, B>& outputs) {
    return {scale(outputs.first), scale(outputs.second)};
  }

  /// Divides every gradient of `optimizer` by the current scale, in place. A 16-bit gradient whose
  /// optimizer is one of torchamp::optim stays as it is: the factor is noted, and
  /// torchamp::clip_grad_norm_ and the step apply it in float32.
  ///
  /// Call it once between backward() and step(), when you clip or look at gradients; step() does it
  /// otherwise. A gradient that was unscaled through another optimizer in this iteration is only
  /// looked at, with one warning.
  ///
  /// A parameter that the optimizer lists twice is divided once, with one warning, since the
  /// optimizer will update it twice; bfloat16 gradients are one warning, since they need no scale.
  ///
  /// Layouts: strided, and sparse (COO), where the values are divided; of an uncoalesced one the
  ///          sums of equal indices must be finite too.
  /// Dtypes:  f32, f64, bf16, complex64 and complex128 gradients, in any mixture.
  /// Devices: CPU, CUDA. Queued on the current stream; does not wait for the device.
  /// Errors:  c10::Error if called twice before update(), after step(), or before scale();
  ///          c10::ValueError naming the parameter for an fp16 gradient, with nothing changed.
  void unscale_(torch::optim::Optimizer& optimizer);

  /// Runs `optimizer.step()` unless a gradient is inf or NaN, and tells which of both happened. The
  /// optimizers of torchamp::optim unscale, check, clip and update in one pass.
  ///
  /// Unscales first where unscale_() was not called; where it was, looks at all gradients again,
  /// and unscales those that have appeared since, or were made anew by a scaled backward(). One
  /// that a scaled backward() was added to since is one warning. Gradients are unscaled afterwards,
  /// taken or skipped. Waits for the device once, for the decision.
  ///
  /// A closure is for a disabled scaler, which hands it to the optimizer.
  ///
  /// Errors: c10::Error if called twice before update(), before scale(), with a closure or an
  ///         optimizer that needs one (LBFGS) when enabled, or when no parameter of the optimizer
  ///         has a gradient; those of unscale_(). Nothing has changed then.
  StepOutcome step(torch::optim::Optimizer& optimizer,
                   std::function<at::Tensor()> closure = nullptr);

  /// Ends the iteration: lowers the scale if any optimizer's gradients were inf or NaN, raises it
  /// after growth_interval good iterations.
  ///
  /// Errors: c10::Error when no optimizer's gradients were looked at since the last update().
  void update();
  /// Ends the iteration and sets the scale; the count of good iterations goes on.
  ///
  /// Errors: c10::ValueError for a value outside of [min_scale, max_scale].
  void update(double new_scale);
  /// The same from a tensor of one element, on the scaler's device type, without gradient; waits
  /// for its device.
  void update(const at::Tensor& new_scale);

  bool is_enabled() const { return options_.enabled; }
  /// The scale, 1 when disabled. Waits for the device once scale() was called.
  double get_scale() const;
  /// Whether the scale moves by itself; false for a static one.
  bool is_dynamic() const { return options_.dynamic; }
  double get_growth_factor() const { return options_.growth_factor; }
  double get_backoff_factor() const { return options_.backoff_factor; }
  int64_t get_growth_interval() const { return options_.growth_interval; }
  double get_min_scale() const { return min_scale_; }
  double get_max_scale() const { return options_.max_scale; }
  /// Errors: c10::ValueError, when enabled, for a value that the constructor would refuse; the
  ///         factors of a static scaler cannot be set.
  void set_growth_factor(double new_factor);
  void set_backoff_factor(double new_factor);
  void set_growth_interval(int64_t new_interval);

  /// Calls of step() so far that ran the optimizer, and that did not.
  int64_t applied_steps() const;
  int64_t skipped_steps() const;
  /// Iterations in a row, up to the last update(), in which some step was skipped.
  int64_t consecutive_skips() const;
  /// The last skipped steps, options.skip_history at most, oldest first.
  std::vector<SkippedStep> last_skips() const;
  /// Whether the search for a scale has stalled, and the numbers behind it. Waits for the device.
  ScalerHealth health() const;

  /// Python's dict: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty
  /// when disabled. With hysteresis also _overflow_run, which Python ignores. The two factors of a
  /// static scaler are 1, which keeps the scale of a Python GradScaler that loads them where it is.
  /// Call it after update().
  base::StateDict state_dict() const;
  /// Takes over such a dict, Python's or ours, whole or not at all. Does nothing when disabled.
  ///
  /// Errors: base::CheckpointError naming the entry; the scaler is then unchanged.
  void load_state_dict(const base::StateDict& state);
  /// The first half of it: compares, and changes nothing.
  base::Loading prepare_load(const base::StateDict& state);

  /// The counts, the skipped steps and the iterations since growth: what state_dict() has no place
  /// for, since its keys are Python's. Call it after update().
  base::StateDict history_state_dict() const;
  /// Takes over such a dict, whole or not at all; after load_state_dict().
  ///
  /// Errors: base::CheckpointError naming the entry; the scaler is then unchanged.
  void load_history_state_dict(const base::StateDict& state);
  /// The first half of it: compares, and changes nothing.
  base::Loading prepare_history_load(const base::StateDict& state);

 private:
  detail::OptimizerState& state_of(const torch::optim::Optimizer& optimizer);
  void require_dynamic(const char* who) const;
  void require_scale(const char* who, const torch::optim::Optimizer* optimizer);
  void unscale_gradients(detail::OptimizerState& state, const torch::optim::Optimizer& optimizer,
                         const char* who);
  StepOutcome fused_step(detail::OptimizerState& state, torch::optim::Optimizer& optimizer,
                         ScaledStep& fused);
  void recheck_gradients(detail::OptimizerState& state, const torch::optim::Optimizer& optimizer);
  bool unscaled_by_another(const detail::OptimizerState& state, const detail::Gradient& gradient);
  bool is_scaled_anew(const detail::OptimizerState& state, const detail::Gradient& gradient);
  void warn_of_mixture(const detail::Gradient& gradient);
  void warn_of_shared(const detail::Gradient& gradient);
  void warn_if_gradients_are_older_than_scale();
  void warn_if_listed_twice(const std::vector<detail::Gradient>& gradients);
  void warn_if_bfloat16(const std::vector<detail::Gradient>& gradients);
  void warn_if_many_skips(std::optional<int64_t> skips_in_a_row);
  void note_unscaled(detail::OptimizerState& state, const std::vector<detail::Gradient>& gradients);
  void note(const StepOutcome& outcome);
  bool is_capturing() const;
  void finish_iteration();

  GradScalerOptions options_;
  double min_scale_ = 0.0;
  std::unique_ptr<detail::ScaleState> scale_;
  std::vector<std::unique_ptr<detail::OptimizerState>> optimizers_;
  bool loaded_ = false;
  int64_t scale_calls_ = 0;
  int64_t scale_calls_at_update_ = 0;
  // Which parameters hold scaled gradients; backward passes that are under way share it.
  std::shared_ptr<multi_tensor::ScaledMarks> marks_;
  std::unique_ptr<detail::StepHistory> history_;
  bool warned_stale_ = false;
  bool warned_shared_ = false;
  bool warned_mixture_ = false;
  bool warned_listed_twice_ = false;
  bool warned_bfloat16_ = false;
  bool warned_skips_ = false;
  bool watched_disabled_ = false;
};

}  // namespace torchamp::amp
