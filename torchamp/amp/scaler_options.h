#pragma once
// GradScalerOptions: what a GradScaler is told at construction.

#include <cstdint>
#include <limits>
#include <optional>

#include <c10/core/DeviceType.h>

namespace torchamp::amp {

struct GradScalerOptions {
  /// The device type of the losses; a CUDA scaler on a machine without CUDA switches itself off
  /// with a warning. Not given: wherever the first loss is.
  std::optional<at::DeviceType> device = std::nullopt;
  /// First scale; 2^-126 up to max_scale.
  double init_scale = 65536.0;
  /// Multiplies the scale after growth_interval good iterations in a row; above 1.
  double growth_factor = 2.0;
  /// Multiplies the scale after an iteration with an inf or NaN gradient; above 0, below 1.
  double backoff_factor = 0.5;
  /// Good iterations in a row until the scale grows; at least 1.
  int64_t growth_interval = 2000;
  /// Off makes scale(), unscale_() and update() do nothing and step() call the optimizer.
  bool enabled = true;
  /// Off makes the scale static: it stays at init_scale, neither growing nor backing off, and bad
  /// steps are still skipped. The factors read as 1 then; growth_factor, backoff_factor and
  /// hysteresis have no meaning.
  bool dynamic = true;
  /// The scale is never lowered below this; at least 2^-126, so that its reciprocal is finite. Not
  /// given: 2^-14, or the lowest scale that was asked for when that is less.
  std::optional<double> min_scale = std::nullopt;
  /// The scale never grows above this.
  double max_scale = std::numeric_limits<float>::max();
  /// The scale is lowered by the hysteresis-th bad iteration in a row and by those that follow it;
  /// 1 lowers it every time, as torch.amp does.
  int64_t hysteresis = 1;
  /// One warning is given when this many iterations in a row were skipped, and health() calls it a
  /// stall; 0 never does.
  int64_t warn_after_skips = 25;
  /// health() calls it a stall when the scale has not grown for this many growth intervals: one bad
  /// iteration an interval is the rule once a scale is found, several are not; 0 never does.
  int64_t stall_after_intervals = 5;
  /// How many of the last skipped steps are remembered.
  int64_t skip_history = 64;
};

}  // namespace torchamp::amp
