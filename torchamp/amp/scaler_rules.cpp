#include "torchamp/amp/scaler_rules.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

namespace torchamp::amp::detail {
namespace {

constexpr double kDefaultFloor = 0x1p-14;
// The smallest normal float32: its reciprocal 2^126 is finite.
constexpr double kLowestScale = 0x1p-126;
constexpr double kHighestScale = std::numeric_limits<float>::max();
// LibTorch's update kernel counts in int32.
constexpr int64_t kLongestInterval = std::numeric_limits<int32_t>::max();

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

}  // namespace

std::string wrong_growth_factor(double value) {
  if (std::isfinite(value) && value > 1.0) {
    return {};
  }
  return text("growth_factor is ", value, ". The growth factor must be > 1.0.");
}

std::string wrong_backoff_factor(double value) {
  if (value > 0.0 && value < 1.0) {
    return {};
  }
  return text("backoff_factor is ", value, ". The backoff factor must be < 1.0 and > 0.");
}

std::string wrong_growth_interval(int64_t value) {
  if (value >= 1 && value <= kLongestInterval) {
    return {};
  }
  return text("growth_interval is ", value, "; 1 to ", kLongestInterval, " is accepted.");
}

std::string wrong_scale(double value, const GradScalerOptions& options) {
  const double lowest = options.min_scale.value_or(kLowestScale);
  if (value >= lowest && value <= options.max_scale) {
    return {};
  }
  return text("the scale is ", value, "; ", lowest, " to ", options.max_scale,
              " is accepted, where its reciprocal is finite.");
}

std::string wrong_options(const GradScalerOptions& options) {
  if (!(options.max_scale >= kLowestScale && options.max_scale <= kHighestScale)) {
    return text("max_scale is ", options.max_scale, "; ", kLowestScale, " to ", kHighestScale,
                " is accepted.");
  }
  if (options.min_scale &&
      !(*options.min_scale >= kLowestScale && *options.min_scale <= options.max_scale)) {
    return text("min_scale is ", *options.min_scale, "; ", kLowestScale, " (2^-126) to max_scale, ",
                options.max_scale, ", is accepted.");
  }
  if (options.hysteresis < 1) {
    return text("hysteresis is ", options.hysteresis, "; 1 or more is accepted.");
  }
  const std::pair<const char*, int64_t> counts[] = {
      {"warn_after_skips", options.warn_after_skips},
      {"stall_after_intervals", options.stall_after_intervals},
      {"skip_history", options.skip_history}};
  for (const auto& [name, value] : counts) {
    if (value < 0) {
      return text(name, " is ", value, "; 0 (never, or none) or more is accepted.");
    }
  }
  for (const std::string& wrong :
       {wrong_growth_factor(options.growth_factor), wrong_backoff_factor(options.backoff_factor),
        wrong_growth_interval(options.growth_interval)}) {
    if (!wrong.empty()) {
      return wrong;
    }
  }
  const std::string wrong = wrong_scale(options.init_scale, options);
  return wrong.empty() ? wrong : "init_scale cannot be used: " + wrong;
}

double floor_for(const GradScalerOptions& options, double scale) {
  return options.min_scale.value_or(std::min({kDefaultFloor, options.max_scale, scale}));
}

}  // namespace torchamp::amp::detail
