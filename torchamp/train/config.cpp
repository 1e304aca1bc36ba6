#include "torchamp/train/config.h"

#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "torchamp/base/error.h"

namespace torchamp::train {
namespace {

template <typename Enum, size_t kCount>
using Names = std::array<std::pair<std::string_view, Enum>, kCount>;

constexpr Names<OptimizerKind, 2> kOptimizers = {
    {{"adamw", OptimizerKind::kAdamW}, {"sgd", OptimizerKind::kSgd}}};
constexpr Names<ScheduleKind, 2> kSchedules = {
    {{"constant", ScheduleKind::kConstant}, {"cosine", ScheduleKind::kCosine}}};
constexpr Names<Layout, 3> kLayouts = {{{"auto", Layout::kAuto},
                                        {"contiguous", Layout::kContiguous},
                                        {"channels_last", Layout::kChannelsLast}}};
constexpr Names<ScalerUse, 3> kScalerUses = {
    {{"auto", ScalerUse::kAuto}, {"on", ScalerUse::kOn}, {"off", ScalerUse::kOff}}};

template <typename Enum, size_t kCount>
std::string_view name_of(const Names<Enum, kCount>& names, Enum value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) return name;
  }
  return "unknown";
}

template <typename Enum, size_t kCount>
Enum parse(const Names<Enum, kCount>& names, std::string_view what, std::string_view text) {
  std::string accepted;
  for (const auto& [name, value] : names) {
    if (name == text) return value;
    accepted += (accepted.empty() ? "" : ", ") + std::string(name);
  }
  throw base::UsageError("[" + std::string(what) + "] '" + std::string(text) +
                         "' is not known; accepted are: " + accepted + ".");
}

template <typename Number>
[[noreturn]] void out_of_range(const char* name, Number value, const std::string& accepted) {
  std::ostringstream text;
  text << "[train] " << name << " is " << value << "; " << accepted << " is accepted.";
  throw base::UsageError(text.str());
}

// Counts end at 2^31 - 1, so that the product of two of them is no overflow.
void at_least(const char* name, int64_t value, int64_t least) {
  if (value < least || value > std::numeric_limits<int32_t>::max()) {
    out_of_range(
        name, value,
        least == 0 ? "a whole number from 0 to 2147483647" : "a whole number from 1 to 2147483647");
  }
}

void above_zero(const char* name, double value) {
  if (!(value > 0.0 && std::isfinite(value))) {
    out_of_range(name, value, "a finite number above 0");
  }
}

}  // namespace

std::string_view to_string(OptimizerKind kind) { return name_of(kOptimizers, kind); }
std::string_view to_string(ScheduleKind kind) { return name_of(kSchedules, kind); }
std::string_view to_string(Layout layout) { return name_of(kLayouts, layout); }
std::string_view to_string(ScalerUse use) { return name_of(kScalerUses, use); }

OptimizerKind parse_optimizer(std::string_view name) {
  return parse(kOptimizers, "optimizer", name);
}
ScheduleKind parse_schedule(std::string_view name) { return parse(kSchedules, "schedule", name); }
Layout parse_layout(std::string_view name) { return parse(kLayouts, "layout", name); }
ScalerUse parse_scaler_use(std::string_view name) { return parse(kScalerUses, "scaler", name); }

double TrainerConfig::resolved_lr() const {
  return lr.value_or(optimizer == OptimizerKind::kAdamW ? 1e-3 : 1e-2);
}

double TrainerConfig::resolved_weight_decay() const {
  return weight_decay.value_or(optimizer == OptimizerKind::kAdamW ? 1e-2 : 0.0);
}

bool TrainerConfig::uses_scaler() const {
  return scaler == ScalerUse::kOn || (scaler == ScalerUse::kAuto && precision == Precision::kFp16);
}

void TrainerConfig::validate() const {
  if (master_weights && precision == Precision::kFp32) {
    out_of_range("master-weights", "on and precision fp32", "precision bf16 or fp16");
  }
  if (master_weights && resolved_validate_precision() != precision) {
    out_of_range("validate-precision", format_precision(resolved_validate_precision()),
                 std::string("with master-weights the precision of training, ") +
                     format_precision(precision) + ", which the weights have,");
  }
  // GradScaler's own bounds: the scale and its reciprocal are finite in float32.
  if (!(init_scale >= std::numeric_limits<float>::min() &&
        init_scale <= std::numeric_limits<float>::max())) {
    out_of_range("init-scale", init_scale, "a number from 2^-126 to 3.4e38");
  }
  at_least("growth-interval", growth_interval, 1);
  // The optimizers multiply the two, and divide the rate by 1 - beta, within float32's range.
  constexpr double kMost = 1e15;
  if (!(resolved_lr() > 0.0 && resolved_lr() <= kMost)) {
    out_of_range("lr", resolved_lr(), "a number above 0, at most 1e15,");
  }
  const double decay = resolved_weight_decay();
  if (!(decay >= 0.0 && decay <= kMost)) {
    out_of_range("weight-decay", decay, "a number from 0 to 1e15");
  }
  if (!(momentum >= 0.0 && momentum < 1.0)) {
    out_of_range("momentum", momentum, "a number from 0 to below 1");
  }
  if (clip) above_zero("clip", *clip);
  if (!(ema_decay >= 0.0 && ema_decay < 1.0)) {
    out_of_range("ema", ema_decay, "a number from 0 (no average) to below 1");
  }
  at_least("warmup-steps", warmup_steps, 0);
  at_least("batch", batch, 1);
  at_least("accumulate", accumulate, 1);
  if (epochs) at_least("epochs", *epochs, 1);
  if (steps) at_least("steps", *steps, 1);
  at_least("workers", workers, 0);
  at_least("max-skipped", max_skipped_in_a_row, 1);
  at_least("checkpoint-every-steps", checkpoint_every_steps, 0);
  at_least("keep-last", keep_last, 1);
}

}  // namespace torchamp::train
