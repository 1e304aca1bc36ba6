#pragma once
// Where a run stands: counters and sums, and their form in a checkpoint.

#include <cstdint>
#include <limits>
#include <string>

#include "torchamp/base/loading.h"
#include "torchamp/base/state_dict.h"

namespace torchamp::train {

/// What the position in the data depends on. A run that is resumed in the middle of an epoch must
/// have the same.
struct DataOrder {
  std::string name;
  int64_t size = 0;
  int64_t batch = 0;
  int64_t accumulate = 0;
  int64_t seed = 0;

  bool operator==(const DataOrder&) const = default;
};

std::string to_string(const DataOrder& order);

struct RunState {
  int64_t epoch = 0;       // finished epochs
  int64_t next_batch = 0;  // of the epoch under way
  int64_t step = 0;        // optimizer steps, skipped ones too
  int64_t skipped = 0;     // steps, of the whole run
  int64_t skipped_in_a_row = 0;

  // Of the epoch under way; sums over applied steps.
  int64_t epoch_applied = 0;
  int64_t epoch_skipped = 0;
  int64_t epoch_examples = 0;
  double epoch_loss_sum = 0.0;  // of mean loss times examples
  double epoch_norm_sum = 0.0;

  // Of the last step, and of the last epoch that was finished.
  double last_lr = 0.0;
  double last_train_loss = std::numeric_limits<double>::quiet_NaN();

  DataOrder order;
  std::string precision;
  std::string optimizer;

  bool is_within_epoch() const { return next_batch > 0; }
  // Means over the applied steps of the epoch under way; NaN without any.
  double mean_loss() const;
  double mean_norm() const;
  void begin_next_epoch();
};

base::StateDict to_state_dict(const RunState& state);
/// The state of such a dict; entries that are missing, of another type or negative are added to
/// `differences`.
RunState run_state_from(const base::StateDict& dict, base::Differences& differences);

}  // namespace torchamp::train
