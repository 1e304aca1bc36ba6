#pragma once
// The learning rate over the steps of a run: linear warm-up, then constant or a cosine.

#include <cstdint>
#include <vector>

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torch::optim {
class Optimizer;
}

namespace torchamp::optim {

/// Shape of a WarmupCosine.
struct WarmupCosineOptions {
  int64_t warmup_steps = 0;  ///< steps of linear rise; 0 or more
  int64_t total_steps = 0;   ///< step at which the cosine ends; 0 keeps the rate constant instead
  double min_factor = 0.0;   ///< where the cosine ends, as a part of the base rate; 0 to 1
};

/// The factor on the base rate for step `step`, counted from 0:
///   step < warmup:  (step + 1) / warmup
///   afterwards:     min + (1 - min) * (1 + cos(pi * p)) / 2,  p = (step - warmup) / (total -
///   warmup)
/// and p stays 1 after the end. Without total_steps it is 1 after the warm-up.
TORCHAMP_API double warmup_cosine_factor(int64_t step, const WarmupCosineOptions& options);

/// Sets the learning rate of every parameter group to its base rate times warmup_cosine_factor().
///
/// The base rate is what each group holds at construction; the rate of step 0 is set there too.
/// Call step() after each *applied* optimizer step, and not after one that the GradScaler skipped:
/// the schedule then follows the training and not the search for a scale.
///
/// Errors: UsageError for a negative warm-up, a total not above the warm-up, a factor outside [0,
/// 1].
class TORCHAMP_API WarmupCosine {
 public:
  /// Keeps a reference to `optimizer`, which must live as long.
  WarmupCosine(torch::optim::Optimizer& optimizer, WarmupCosineOptions options);

  /// Goes on to the next step's rate.
  void step();

  /// Applied steps so far.
  int64_t last_step() const { return step_; }
  /// The rate of the first group, for logs.
  double lr() const;

  /// {"last_step": int, "base_lrs": [float]}.
  base::StateDict state_dict() const;
  /// Goes to the position that `state` holds and sets the rates; shape and base rates stay those of
  /// this object, so that a resumed run may be given others.
  void load_state_dict(const base::StateDict& state);
  /// The first half of it: compares, and changes nothing.
  base::Loading prepare_load(const base::StateDict& state);
  /// Goes to the rate of applied step `step`, 0 or more.
  void set_last_step(int64_t step);

 private:
  void apply();

  torch::optim::Optimizer* optimizer_;
  WarmupCosineOptions options_;
  std::vector<double> base_lrs_;
  int64_t step_ = 0;
};

}  // namespace torchamp::optim
