#pragma once
// StepHistory: the count of a scaler's steps and the last ones that were skipped. Internal to
// GradScaler; decides nothing.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/amp/scaler_health.h"
#include "torchamp/amp/step_outcome.h"
#include "torchamp/base/export.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/multi_tensor/device_read.h"

namespace torchamp::amp::detail {

/// Outcomes come in as they are, read or not. Where nobody reads them, note() and end_iteration()
/// have the oldest ones copied to the host behind the work that is queued, once kMostUnread are
/// unread, and count them when they have come; they wait, for a copy asked for kMostUnread steps
/// before, only where the host is that far ahead of its device. The other functions read what is
/// unread.
///
/// Memory: 2 * kMostUnread outcomes and `capacity` skipped steps at most, whatever the run's
/// length.
class TORCHAMP_API StepHistory {
 public:
  static constexpr size_t kMostUnread = 64;

  explicit StepHistory(int64_t capacity) : capacity_(static_cast<size_t>(capacity)) {}

  /// A step of the iteration under way was decided; its loss had been multiplied with `scale` (one
  /// element; undefined without a scale).
  void note(const StepOutcome& outcome, const at::Tensor& scale);
  /// Returns the iterations in a row, up to this one, in which some step was skipped, as far as the
  /// outcomes are read; nothing when this iteration had none.
  std::optional<int64_t> end_iteration();

  int64_t iterations() const { return ended_; }
  int64_t applied();
  int64_t skipped();
  /// In iterations that have ended.
  int64_t consecutive_skips();
  /// The last ones, oldest first.
  std::vector<SkippedStep> last_skips();

  base::StateDict state_dict();
  /// Errors: base::CheckpointError naming the entry; nothing has changed then.
  void load_state_dict(const base::StateDict& state);

 private:
  struct Entry {
    int64_t iteration = 0;
    StepOutcome outcome;
    at::Tensor scale;
  };
  // A skipped step whose numbers may still be on the device.
  struct Skip {
    SkippedStep step;
    std::optional<Entry> unread;
  };

  void take(const Entry& entry);
  void take_read();
  void ask_for_oldest();
  void settle_asked();
  void read_all();
  void close_iteration();

  size_t capacity_;
  std::deque<Entry> entries_;  // not yet counted
  // Outcomes on their way to the host, the oldest unread ones of one device.
  std::optional<multi_tensor::DeviceRead> coming_;
  std::vector<StepOutcome> asked_;
  std::deque<Skip> skips_;
  int64_t ended_ = 0;
  int64_t applied_ = 0;
  int64_t skipped_ = 0;
  int64_t consecutive_skips_ = 0;
  // The iteration that the last counted step belongs to.
  int64_t counting_ = 0;
  bool counting_applied_ = false;
  bool counting_skipped_ = false;
};

}  // namespace torchamp::amp::detail
