#include "torchamp/amp/step_outcome.h"

namespace torchamp::amp {

StepOutcome::Reason StepOutcome::reason() const {
  if (applied_) {
    return Reason::kApplied;
  }
  return has_nan_.item<bool>() ? Reason::kNan : Reason::kInf;
}

std::string StepOutcome::to_string() const {
  switch (reason()) {
    case Reason::kApplied:
      return "applied";
    case Reason::kInf:
      return "skipped: inf gradient";
    default:
      return "skipped: nan gradient";
  }
}

}  // namespace torchamp::amp
