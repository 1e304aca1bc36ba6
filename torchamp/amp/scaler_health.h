#pragma once
// What a GradScaler tells of its past: the steps it skipped, and whether its search for a scale
// gets anywhere.

#include <cstdint>
#include <string>

#include "torchamp/amp/step_outcome.h"
#include "torchamp/base/export.h"

namespace torchamp::amp {

/// One step that was not taken.
struct SkippedStep {
  int64_t iteration = 0;  ///< from 1; an iteration ends with update()
  double scale = 0.0;     ///< that the loss was multiplied with
  StepOutcome::Reason reason = StepOutcome::Reason::kInf;
};

/// Where the search for a scale stands.
struct TORCHAMP_API ScalerHealth {
  enum class Stall {
    kNone,
    kSkipping,    ///< warn_after_skips iterations in a row were skipped
    kAtFloor,     ///< the last iteration was skipped, and the scale cannot be lowered further
    kNotGrowing,  ///< no growth for stall_after_intervals growth intervals: overflows come too
                  ///< often
  };

  Stall stall = Stall::kNone;
  double scale = 1.0;
  int64_t iterations = 0;  ///< that ended with update()
  int64_t applied_steps = 0;
  int64_t skipped_steps = 0;
  int64_t consecutive_skips = 0;  ///< iterations in a row with a skipped step
  /// Iterations since the scale last grew or was set; all of them when it never did.
  int64_t iterations_since_growth = 0;

  bool is_stalled() const { return stall != Stall::kNone; }
  /// One sentence: the numbers and, when stalled, what may help.
  std::string to_string() const;
};

}  // namespace torchamp::amp
