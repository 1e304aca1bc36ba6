#pragma once
// Trainer: the complete mixed-precision training loop over any module and data set.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/train/config.h"
#include "torchamp/train/data/dataset.h"
#include "torchamp/train/metrics.h"
#include "torchamp/train/objective.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace torchamp::train {

/// What is trained, and on what.
struct TrainerParts {
  std::shared_ptr<torch::nn::Module> module;
  Forward forward;
  DatasetPair data;           ///< without validation the epochs report NaN for it
  Loss loss = cross_entropy;  ///< a mean
  /// Over the module's parameters; absent: the one that the config names.
  std::shared_ptr<torch::optim::Optimizer> optimizer;
};

/// What the caller wants to hear; each may stay empty. They run on the thread of run(), between
/// steps; what they throw ends the run.
struct TrainerCallbacks {
  std::function<void(const StepMetrics&)> on_step;
  std::function<void(const EpochMetrics&)> on_epoch;
  std::function<void(const std::string&)> on_message;
  /// A signal's number when the run is to end in good order, else 0. Asked between steps and
  /// between batches of validation, so a flag that a signal handler sets serves.
  std::function<int()> stop_signal;
};

/// What run() did, over the whole run with what came before a resume.
struct RunSummary {
  int64_t epochs = 0;  ///< finished
  int64_t steps = 0;
  int64_t skipped_steps = 0;
  std::optional<EpochMetrics> last_epoch;  ///< absent when there was nothing left to do
};

/// Trains a module: autocast, loss scaling, accumulation, clipping, schedule, validation,
/// checkpoints.
///
/// A step that the scaler skips moves neither the schedule nor the module's buffers, and its loss
/// enters no mean. A run that was stopped, by a signal or by the limit on steps, and resumed with
/// load_state_dict() computes the same bits as one that never stopped.
///
/// Devices: CPU, CUDA. Waits for the device once a step.
/// Thread safety: one thread; stop_signal is the way in from others.
/// Example: examples/train_with_trainer.cpp
class TORCHAMP_API Trainer {
 public:
  /// Moves the module to config.device, and its 4-D parameters to config.layout.
  ///
  /// Errors: UsageError for a config out of range; c10::Error for parts that are missing.
  Trainer(TrainerConfig config, TrainerParts parts, TrainerCallbacks callbacks = {});
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;
  ~Trainer();

  /// Trains up to the config's epochs or steps, and writes config.checkpoint after each epoch and
  /// at the end. However it ends, what was to be written is on the disk then.
  ///
  /// Errors: Interrupted after stop_signal, with the checkpoint written where the config names one;
  ///         DivergedError when the loss or the gradients are not finite without a scaler, or too
  ///         many steps in a row were skipped; the file of the last good epoch stays;
  ///         CheckpointError when the file cannot be written, of one written in the background at
  ///         the next one or the end; when another error ends the run, on_message tells it.
  ///         DataError while reading examples.
  RunSummary run();

  /// The whole run: "epoch", "model_state_dict", "optimizer_state_dict", "scaler_state_dict",
  /// "scaler_history", "loss", "lr_scheduler_state_dict", "rng_state", "train_state", "data_state",
  /// "ops_choices", "config", with ema_decay "ema_state_dict" as Python's AveragedModel has it. The
  /// file has "checkpoint_manager" besides.
  base::StateDict state_dict() const;
  /// Goes on from `state`, all of it or none. The precision, the learning rate, weight decay,
  /// averages and the end of the run may be others than before; on_message tells. In the middle of
  /// an epoch the data and their order must be the same. Of a file that Python wrote,
  /// "model_state_dict" and "optimizer_state_dict" are needed; what else is missing starts anew,
  /// and on_message tells.
  ///
  /// Errors: CheckpointError, one sentence with everything that differs in model, optimizer,
  ///         scaler, schedule, generators, averages, position and best checkpoint, and the tensors
  ///         that hold NaN or infinity where training cannot go on from it; nothing is changed
  ///         then.
  void load_state_dict(const base::StateDict& state);

  int64_t steps_per_epoch() const;
  /// The config as it is used: values that were left open are filled in.
  const TrainerConfig& config() const;

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

}  // namespace torchamp::train
