#include "torchamp/amp/scaler_health.h"

#include <sstream>

namespace torchamp::amp {

std::string ScalerHealth::to_string() const {
  std::ostringstream text;
  switch (stall) {
    case Stall::kNone:
      text << "Loss scale " << scale << " after " << iterations << " iterations: " << applied_steps
           << " steps applied, " << skipped_steps << " skipped.";
      return text.str();
    case Stall::kSkipping:
      text << consecutive_skips << " iterations in a row were skipped because gradients were inf "
           << "or NaN; no usable scale was found, it is now " << scale << '.';
      break;
    case Stall::kAtFloor:
      text << "The loss scale is at its floor, " << scale
           << ", and gradients are still inf or NaN (" << consecutive_skips
           << " iterations in a row).";
      break;
    case Stall::kNotGrowing:
      text << "The loss scale, " << scale << ", has not grown for " << iterations_since_growth
           << " iterations: " << skipped_steps << " skipped steps of "
           << applied_steps + skipped_steps << " keep it from growing.";
      break;
  }
  text << " Look for inf or NaN in the loss, the data or the weights, and try a smaller learning "
          "rate or bf16.";
  return text.str();
}

}  // namespace torchamp::amp
