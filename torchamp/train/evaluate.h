#pragma once
// Loss and accuracy of a model over a data set.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <c10/core/ScalarType.h>

#include "torchamp/base/export.h"
#include "torchamp/train/data/dataset.h"
#include "torchamp/train/objective.h"

namespace torch::nn {
class Module;
}

namespace torchamp::train {

struct Evaluation {
  double loss = 0.0;      ///< mean over the elements of the targets (examples, or tokens of text)
  double accuracy = 0.0;  ///< part of them that the largest output names; NaN for targets of reals
  int64_t num_targets = 0;
};

struct EvaluateOptions {
  int64_t batch = 64;
  int64_t workers = 1;
  std::optional<at::ScalarType> dtype;  ///< autocast to it; absent: as the parameters are
  Placement placement;
  std::function<bool()> stop;  ///< asked before each batch; true ends early
};

/// Runs `forward` over `dataset` in eval mode, without gradients and without a scaler, and puts the
/// module back into the mode it was in. Sums are in float64 on the device and are read once.
/// Nothing when options.stop ended it.
TORCHAMP_API std::optional<Evaluation> evaluate(torch::nn::Module& module, const Forward& forward,
                                                const Loss& loss,
                                                const std::shared_ptr<const Dataset>& dataset,
                                                const EvaluateOptions& options);

}  // namespace torchamp::train
