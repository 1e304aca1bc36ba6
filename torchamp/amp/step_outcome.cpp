#include "torchamp/amp/step_outcome.h"

#include <optional>
#include <utility>

namespace torchamp::amp {

struct StepOutcome::Reading {
  at::Tensor found_inf;  // until it is read
  at::Tensor has_nan;    // until it is read
  at::Tensor loss;
  std::optional<bool> skipped;
  bool is_nan = false;
};

StepOutcome StepOutcome::make_applied(at::Tensor loss) {
  auto reading = std::make_shared<Reading>();
  reading->loss = std::move(loss);
  reading->skipped = false;
  return StepOutcome(std::move(reading));
}

StepOutcome StepOutcome::make_pending(at::Tensor found_inf, at::Tensor has_nan) {
  auto reading = std::make_shared<Reading>();
  reading->found_inf = std::move(found_inf);
  reading->has_nan = std::move(has_nan);
  return StepOutcome(std::move(reading));
}

void StepOutcome::set_loss(at::Tensor loss) { reading_->loss = std::move(loss); }
void StepOutcome::set_has_nan(at::Tensor has_nan) { reading_->has_nan = std::move(has_nan); }
const at::Tensor& StepOutcome::loss() const { return reading_->loss; }
bool StepOutcome::is_read() const { return reading_->skipped.has_value(); }
const at::Tensor& StepOutcome::found_inf() const { return reading_->found_inf; }

bool StepOutcome::skipped() const {
  if (!reading_->skipped) settle(reading_->found_inf.item<float>() != 0.0F);
  return *reading_->skipped;
}

void StepOutcome::settle(bool skipped) const {
  if (reading_->skipped) return;
  reading_->skipped = skipped;
  reading_->found_inf = at::Tensor();
}

StepOutcome::Reason StepOutcome::reason() const {
  if (applied()) {
    return Reason::kApplied;
  }
  if (reading_->has_nan.defined()) {
    reading_->is_nan = reading_->has_nan.item<bool>();
    reading_->has_nan = at::Tensor();
  }
  return reading_->is_nan ? Reason::kNan : Reason::kInf;
}

std::string StepOutcome::to_string() const {
  const Reason why = reason();
  return why == Reason::kApplied ? "applied"
                                 : "skipped: " + std::string(amp::to_string(why)) + " gradient";
}

const char* to_string(StepOutcome::Reason reason) {
  switch (reason) {
    case StepOutcome::Reason::kApplied:
      return "applied";
    case StepOutcome::Reason::kInf:
      return "inf";
    default:
      return "nan";
  }
}

}  // namespace torchamp::amp
