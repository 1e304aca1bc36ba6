#pragma once
// What a run reports: numbers a step and numbers an epoch, and their one spelling as CSV and JSON.

#include <cstdint>
#include <optional>
#include <string>

#include "torchamp/base/export.h"

namespace torchamp::train {

/// One optimizer step, applied or skipped.
struct StepMetrics {
  int64_t epoch = 0;          ///< from 1
  int64_t num_epochs = 0;     ///< of the whole run; 0 when only the steps are bounded
  int64_t step = 0;           ///< of the whole run, from 1
  int64_t step_in_epoch = 0;  ///< from 1
  int64_t steps_per_epoch = 0;
  double loss = 0.0;       ///< mean over the examples of the step; never scaled
  double mean_loss = 0.0;  ///< over the applied steps of the epoch so far
  double lr = 0.0;         ///< that the step was taken with
  double scale = 1.0;      ///< that the loss was multiplied with; 1 without a scaler
  double grad_norm = 0.0;  ///< L2, of the unscaled gradients, before clipping
  bool skipped = false;
  std::string skip_reason;      ///< "inf" or "nan" when skipped
  int64_t epoch_skipped = 0;    ///< skipped steps of the epoch so far
  int64_t examples = 0;         ///< in this step
  double examples_per_s = 0.0;  ///< of this step, waiting for data included
};

/// One epoch: training, then validation.
struct EpochMetrics {
  int64_t epoch = 0;  ///< from 1
  int64_t num_epochs = 0;
  int64_t step = 0;             ///< of the whole run, at the end of the epoch
  bool is_complete = true;      ///< false when the limit on steps ended it early
  bool is_text = false;         ///< losses and accuracy are per token
  double train_loss = 0.0;      ///< mean over the examples of the applied steps; NaN without any
  double val_loss = 0.0;        ///< mean over the examples (tokens for text)
  double val_accuracy = 0.0;    ///< 0 to 1
  double examples_per_s = 0.0;  ///< of the training part, since the start or the resume
  double scale = 1.0;           ///< after the last step
  int64_t skipped_steps = 0;    ///< in this epoch
  double lr = 0.0;              ///< of the last step
  double grad_norm = 0.0;       ///< mean over the applied steps; NaN without any
};

/// "epoch,step,loss,lr,scale,grad_norm,skipped,examples_per_s".
TORCHAMP_API std::string csv_header();
/// One row; numbers in the fewest digits that read back as the same double, skipped as 0 or 1.
TORCHAMP_API std::string to_csv(const StepMetrics& metrics);
/// One JSON object on one line, beginning with "epoch"; what is not finite becomes null. For text a
/// "val_perplexity" is added.
TORCHAMP_API std::string to_json(const EpochMetrics& metrics);

/// `value` in the fewest digits that read back as the same double; "inf", "-inf", "nan" otherwise.
TORCHAMP_API std::string shortest(double value);

}  // namespace torchamp::train
