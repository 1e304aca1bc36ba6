#pragma once
// Which numbers a GradScaler accepts. Each function returns what is wrong, or an empty text.
// Internal: construction, setters and load_state_dict() share them.

#include <cstdint>
#include <string>

#include "torchamp/amp/scaler_options.h"

namespace torchamp::amp::detail {

std::string wrong_growth_factor(double value);
std::string wrong_backoff_factor(double value);
std::string wrong_growth_interval(int64_t value);
/// Against max_scale, and min_scale where that was given.
std::string wrong_scale(double value, const GradScalerOptions& options);
/// All of it, as at construction.
std::string wrong_options(const GradScalerOptions& options);

/// The floor to use when `scale` is the lowest scale asked for so far.
double floor_for(const GradScalerOptions& options, double scale);

}  // namespace torchamp::amp::detail
