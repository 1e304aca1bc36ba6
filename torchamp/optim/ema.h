#pragma once
// Ema: an exponential moving average of a module's weights, in float32 whatever the weights are.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/base/export.h"
#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torch::nn {
class Module;
}

namespace torchamp::optim {

/// How an Ema averages.
struct EmaOptions {
  double decay = 0.999;      ///< what an update keeps of the average; 0 to 1
  bool use_buffers = false;  ///< averages floating buffers (BatchNorm's statistics) too
  /// Update n (from 0) keeps min(decay, (1 + n) / (10 + n)), so that the first weights of a short
  /// run do not stay in the average.
  /// Source: TensorFlow's ExponentialMovingAverage, `num_updates`.
  bool warmup = false;
};

/// The average of a module's parameters over the applied steps:
///   average <- decay * average + (1 - decay) * weight,   and the first update takes the weight
///
///   Ema ema(*model);
///   ...
///   ema.update(scaler.step(optimizer));          // skipped steps change nothing
///   ...
///   { EmaWeights averaged(ema);  validate(*model); }
///
/// Averages are float32 (float64, complex: of their own kind) beside 16-bit weights too, and where
/// a parameter has a master (to_low_precision) its exact value is averaged. A weight under several
/// names counts once. Other buffers stay the module's own. Parameters are followed by handle:
/// Module::to() is seen, one registered anew is not.
///
/// Dtypes:  all floating and complex ones.
/// Devices: that of each parameter; does not wait for it.
/// Source:  PyTorch torch/optim/swa_utils.py, `AveragedModel` with `get_ema_multi_avg_fn`: the same
///          bits for float32 weights.
/// Threads: one at a time.
class TORCHAMP_API Ema {
 public:
  /// Starts with the weights as they are.
  ///
  /// Errors: c10::ValueError for a decay outside of [0, 1] or NaN.
  explicit Ema(const torch::nn::Module& module, EmaOptions options = {});

  /// Takes the weights into the average. Call it after an applied step.
  ///
  /// Errors: c10::Error while averaged weights are in the module, with nothing changed.
  void update();
  /// The same if `outcome` (an amp::StepOutcome, or a bool: whether the step was applied) says so.
  /// Does not wait for a device where the outcome was not read yet.
  template <typename Outcome>
  void update(const Outcome& outcome) {
    if constexpr (requires { outcome.found_inf(); }) {
      if (outcome.found_inf().defined() && !outcome.found_inf().is_cpu()) {
        update_unless(outcome.found_inf());
        return;
      }
    }
    if (static_cast<bool>(outcome)) update();
  }
  /// The same if `found_inf` (one element, on any device) is 0; decided there, without waiting.
  void update_unless(const at::Tensor& found_inf);

  /// Updates so far. Waits for the device after update_unless().
  int64_t n_averaged() const;

  /// Puts the averages into the module's parameters (in place: optimizers and graphs keep them, and
  /// Autocast's kept casts see it) and keeps the weights. What happens to the parameters until
  /// swap_out() is lost.
  ///
  /// Errors: c10::Error when they are in already.
  void swap_in();
  /// Puts the weights back, bit for bit, masters included.
  ///
  /// Errors: c10::Error when the averages are not in.
  void swap_out();
  bool is_swapped_in() const { return is_swapped_in_; }

  /// {"n_averaged": tensor, "module.<name>": tensor ...} as an AveragedModel's state_dict() has it,
  /// the module's other buffers included. Tensors are not copies: save them before the next
  /// update, or clone.
  base::StateDict state_dict() const;
  /// Takes over such a dict, from Python or from state_dict(): the averages and their number, not
  /// the module's own buffers. All or nothing; floating dtypes are converted into each other.
  ///
  /// Errors: CheckpointError listing what is missing, unexpected or of another shape; c10::Error
  ///         while averages are in the module. Nothing has changed then.
  void load_state_dict(const base::StateDict& dict);
  /// The first half of it: compares, and changes nothing.
  base::Loading prepare_load(const base::StateDict& dict);
  /// Begins anew with the weights as they are.
  void reset();

 private:
  struct Average {
    at::Tensor tensor;  // the parameter or buffer
    at::Tensor value;
    at::Tensor kept;  // while the average is in the module
  };
  // A name of the module: `average` is an index, or -1 for a buffer that is not averaged.
  struct Name {
    std::string name;
    int64_t average;
    at::Tensor tensor;
  };

  void add(const torch::nn::Module& module, const std::string& prefix);
  void check_not_swapped_in(const char* who) const;
  void follow_moves();
  void move_towards(const at::Tensor& weight_on_device, double weight);
  double weight_of_update(int64_t n) const;

  EmaOptions options_;
  std::vector<Average> averages_;
  std::vector<Name> names_;
  mutable int64_t n_averaged_ = 0;
  mutable at::Tensor more_averaged_;  // counted on a device since; a double, 0-dim
  bool is_swapped_in_ = false;
};

/// The averages are in the module while this lives.
///
/// Errors: of swap_in(). Where swap_out() fails, for want of memory, the program ends: going on
///         would train the averages.
class EmaWeights {
 public:
  explicit EmaWeights(Ema& ema) : ema_(ema) { ema_.swap_in(); }
  ~EmaWeights() { ema_.swap_out(); }
  EmaWeights(const EmaWeights&) = delete;
  EmaWeights& operator=(const EmaWeights&) = delete;

 private:
  Ema& ema_;
};

}  // namespace torchamp::optim
