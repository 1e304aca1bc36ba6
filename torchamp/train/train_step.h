#pragma once
// One optimizer step: the forward and backward passes of an accumulation window, clipping, the
// scaler's decision. The Trainer's inner part; the loop around it is in trainer.cpp.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include <c10/core/ScalarType.h>

#include "torchamp/amp/grad_scaler.h"
#include "torchamp/train/objective.h"

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace torchamp::train {

struct StepParts {
  torch::nn::Module& module;
  const Forward& forward;
  const Loss& loss;
  torch::optim::Optimizer& optimizer;
  amp::GradScaler& scaler;
};

struct StepOptions {
  std::optional<at::ScalarType> dtype;  // of autocast
  std::optional<double> clip;
  Placement placement;
};

/// The batches that make one step.
struct Window {
  int64_t num_batches = 1;
  int64_t num_examples = 1;  // in all of them; a short last batch counts what it truly holds
  std::function<Batch()> next;
};

struct StepResult {
  double loss = 0.0;  // mean over the window's examples, unscaled
  double grad_norm = 0.0;
  double scale = 1.0;
  bool skipped = false;   // by the scaler
  bool diverged = false;  // no scaler, and loss or norm is not finite: the step was not taken
  std::string reason;     // of a skip
};

/// Runs `window` and takes the step.
///
/// The gradient is that of the mean loss over all examples of the window: each batch's mean counts
/// by the examples in it. With a scaler the module's buffers (BatchNorm's statistics) are put back
/// after a skipped step.
///
/// Waits for the device once: with a scaler, plain optimizers decide on the host, and loss, norm
/// and scale were queued to the host before that; without one, loss and norm are read before the
/// step, so that a NaN never reaches the weights.
StepResult train_step(const StepParts& parts, const StepOptions& options, const Window& window);

}  // namespace torchamp::train
