#pragma once
// How many steps of each precision a benchmark takes. Arithmetic on times only.

#include <vector>

namespace torchamp::cli {

struct PlanOptions {
  int rounds = 0;       // 0: as many as `seconds` hold
  double seconds = 20;  // for the rounds, steps of shortened precisions not counted
  int warmup = 2;
};

/// What is known of a precision before the rounds.
struct Estimate {
  double step_ms = 0;
  bool is_reference = false;  // fp32, which the others are compared with: never shortened
  bool gave_up = false;       // not even one step finished in time
  bool no_fast_path = false;  // its arithmetic is emulated on this device
};

struct StepPlan {
  int warmup = 0;
  int rounds = 0;          // 0: keep the one step that the estimate came from, if there is one
  bool shortened = false;  // fewer steps than the others
};

inline constexpr int kMinRounds = 3;  // the fewest that have a median and a spread

/// A precision without a fast path, or more than four times slower than the fastest, gets at most
/// 20 seconds: fewer rounds, or, where not even two steps fit, none. An explicit number of rounds
/// holds for all.
std::vector<StepPlan> plan_steps(const std::vector<Estimate>& estimates,
                                 const PlanOptions& options);

}  // namespace torchamp::cli
