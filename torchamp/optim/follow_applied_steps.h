#pragma once
// FollowAppliedSteps: a learning-rate schedule that does not move with steps that were skipped.

#include <cstdint>
#include <type_traits>
#include <utility>

namespace torch::optim {
class LRScheduler;
}

namespace torchamp::optim {

/// Moves a schedule on after each optimizer step that was applied, and only then: while the
/// GradScaler searches for its scale and skips steps, a warm-up waits.
///
///   torch::optim::StepLR scheduler(optimizer, 30, 0.1);
///   FollowAppliedSteps schedule(scheduler);      // or WarmupCosine, or any object with step()
///   ...
///   schedule.step(scaler.step(optimizer));
///
/// LibTorch's schedulers, unlike Python's, leave their first step() without effect. One that
/// derives from torch::optim::LRScheduler is stepped once here, so that the rates are Python's:
/// hand it over new.
///
/// Keeps a reference to `scheduler`, which must live as long. A learning rate is a number of the
/// host, so a step() waits for the device where the outcome was not read yet.
///
/// Source: PyTorch torch/optim/lr_scheduler.py, `LRScheduler._initial_step`.
template <typename Scheduler>
class FollowAppliedSteps {
 public:
  explicit FollowAppliedSteps(Scheduler& scheduler) : scheduler_(&scheduler) {
    if constexpr (std::is_base_of_v<torch::optim::LRScheduler, Scheduler>) scheduler.step();
  }

  /// Calls the scheduler's step(arguments...) if `outcome` (an amp::StepOutcome, or a bool: whether
  /// the step was applied) says so, and returns whether it did.
  template <typename Outcome, typename... Arguments>
  bool step(const Outcome& outcome, Arguments&&... arguments) {
    if (!static_cast<bool>(outcome)) return false;
    scheduler_->step(std::forward<Arguments>(arguments)...);
    ++num_applied_;
    return true;
  }

  /// Applied steps seen so far.
  int64_t num_applied() const { return num_applied_; }

 private:
  Scheduler* scheduler_;
  int64_t num_applied_ = 0;
};

}  // namespace torchamp::optim
