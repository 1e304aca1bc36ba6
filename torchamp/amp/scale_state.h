#pragma once
// The loss scale on its device: the value, the run of good iterations, and how both move. Internal
// to GradScaler; knows no optimizer.

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/amp/scaler_options.h"

namespace torchamp::amp::detail {

/// The numbers that a state_dict carries besides the factors.
struct ScaleNumbers {
  double scale = 65536.0;
  int64_t growth_tracker = 0;
  int64_t overflow_run = 0;  // bad iterations in a row; only counted with hysteresis
  int64_t iterations_since_growth = 0;
};

class ScaleState {
 public:
  explicit ScaleState(double init_scale) { pending_.scale = init_scale; }

  bool on_device() const { return scale_.defined(); }
  at::Device device() const { return scale_.device(); }
  /// Makes the tensors on `device` from the numbers held so far.
  void place(at::Device device);

  /// The scale, float32 and 0-dim, on `device`: a copy, made once until the scale changes. Graphs
  /// of autograd hold it, and later updates do not change it.
  at::Tensor scale_on(at::Device device);
  /// The same, copied anew.
  at::Tensor copy_on(at::Device device);
  /// float(1 / double(scale)), on the scale's device.
  at::Tensor inverse() const;

  /// One iteration ended with `found_inf` (0-dim float32 on device(); not 0 means bad). The host
  /// may know that it was not: `may_be_bad` is false then.
  void update(const at::Tensor& found_inf, const GradScalerOptions& rule, double min_scale,
              bool may_be_bad);
  /// Sets the scale by hand; the run of good iterations goes on.
  void set(double scale);
  /// Replaces everything.
  void load(const ScaleNumbers& numbers);
  /// update() was captured into a CUDA graph: from now on replays move the scale unseen by the
  /// host.
  void is_moved_by_graph() { moved_by_graph_ = true; }
  /// To be called when the growth interval changed: a longer run than it then grows at the next
  /// good iteration.
  void growth_interval_changed() { tracker_may_exceed_interval_ = true; }

  /// Read from the device; each waits for it.
  ScaleNumbers numbers(bool with_overflow_run) const;
  double value() const;
  int64_t growth_tracker() const;
  /// Iterations since the scale last grew, was set or was loaded.
  int64_t iterations_since_growth() const;
  void set_iterations_since_growth(int64_t iterations);
  bool changed_by_last_update() const;

  /// The scale, where the host knows it without waiting for a device: on CPU, before the first
  /// loss, and while only set by hand.
  std::optional<double> known() const;
  /// True unless the scale is known to be 1 or more, without waiting for a device.
  bool may_be_below_one() const { return moved_by_graph_ || known().value_or(lower_bound_) < 1.0; }
  /// Makes that knowledge exact by reading the scale, where it had become loose.
  void tighten_lower_bound();

 private:
  void scale_was_set(double scale);

  ScaleNumbers pending_;  // until place()
  // Written in place, whatever changes it: a CUDA graph reads and writes this memory at each
  // replay.
  at::Tensor scale_;
  at::Tensor previous_scale_;
  at::Tensor growth_tracker_;
  at::Tensor overflow_run_;
  at::Tensor iterations_since_growth_;
  std::vector<at::Tensor> copies_;  // of the scale, one a device
  double lower_bound_ = 0.0;
  bool is_lower_bound_exact_ = true;
  bool tracker_may_exceed_interval_ = false;
  bool moved_by_graph_ = false;
};

}  // namespace torchamp::amp::detail
