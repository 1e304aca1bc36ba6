// What GradScaler warns of, each once for a scaler: misuse that can also be legal, and settings
// that cannot help. The iteration is in grad_scaler.cpp.

#include <algorithm>

#include <c10/util/Exception.h>

#include "torchamp/amp/grad_scaler.h"
#include "torchamp/amp/optimizer_state.h"
#include "torchamp/amp/scale_state.h"

namespace torchamp::amp {

void GradScaler::warn_of_shared(const detail::Gradient& gradient) {
  if (warned_shared_) {
    return;
  }
  warned_shared_ = true;
  TORCH_WARN("[unscale_] The gradient of ", gradient.name(),
             ", was already unscaled through another optimizer in this iteration: the parameter "
             "belongs to both. It is divided by the scale once only; give each parameter to one "
             "optimizer if that was not meant.");
}

void GradScaler::warn_of_mixture(const detail::Gradient& gradient) {
  if (warned_mixture_) {
    return;
  }
  warned_mixture_ = true;
  TORCH_WARN(
      "[step] backward() through a scaled loss came after unscale_() and added to the "
      "gradient of ",
      gradient.name(),
      ", which now holds scaled and unscaled parts. Call unscale_() after the last "
      "backward() of the iteration.");
}

void GradScaler::warn_if_listed_twice(const std::vector<detail::Gradient>& gradients) {
  if (warned_listed_twice_) {
    return;
  }
  for (const auto& gradient : gradients) {
    if (gradient.listed_again.empty()) {
      continue;
    }
    warned_listed_twice_ = true;
    TORCH_WARN("[unscale_] The optimizer lists one tensor twice, as ", gradient.name(), ", and as ",
               gradient.listed_again,
               ". Its gradient is divided by the scale once only, but the optimizer will update it "
               "twice; list each parameter once if that was not meant.");
    return;
  }
}

void GradScaler::warn_if_bfloat16(const std::vector<detail::Gradient>& gradients) {
  if (warned_bfloat16_ || scale_->known() == 1.0) {
    return;
  }
  for (const auto& gradient : gradients) {
    if (gradient.values.scalar_type() == at::kBFloat16) {
      warned_bfloat16_ = true;
      TORCH_WARN("[unscale_] The gradient of ", gradient.name(),
                 ", is BFloat16, which has the range of Float and needs no loss scale; make the "
                 "scaler with enabled = false, or leave it out.");
      return;
    }
  }
}

void GradScaler::warn_if_gradients_are_older_than_scale() {
  if (warned_stale_ || scale_calls_ != scale_calls_at_update_ || is_capturing() ||
      !scale_->changed_by_last_update()) {
    return;
  }
  warned_stale_ = true;
  TORCH_WARN(
      "[unscale_] The last update() changed the scale, and scale() was not called since: gradients "
      "made with the old scale are now divided by the new one. Call update() once an iteration, "
      "after step() of every optimizer.");
}

void GradScaler::warn_if_many_skips(std::optional<int64_t> skips_in_a_row) {
  if (!skips_in_a_row || options_.warn_after_skips == 0) {
    return;
  }
  if (*skips_in_a_row < options_.warn_after_skips) {
    warned_skips_ = false;  // a new run of them is told again
  } else if (!warned_skips_) {
    warned_skips_ = true;
    TORCH_WARN("[GradScaler] ", health().to_string());
  }
}

}  // namespace torchamp::amp
