#include "cli/bench_plan.h"

#include <algorithm>

namespace torchamp::cli {
namespace {

constexpr int kMaxRounds = 1000;
constexpr double kSlowFactor = 4;         // slower than the fastest by more is slow
constexpr double kSlowBudgetMs = 20'000;  // that a slow precision may take in the rounds

int rounds_within(double budget_ms, double round_ms) {
  const double rounds = budget_ms / std::max(round_ms, 1e-3);
  return static_cast<int>(std::clamp<double>(rounds, kMinRounds, kMaxRounds));
}

}  // namespace

std::vector<StepPlan> plan_steps(const std::vector<Estimate>& estimates,
                                 const PlanOptions& options) {
  double fastest_ms = 0;
  for (const Estimate& estimate : estimates) {
    if (estimate.gave_up) continue;
    fastest_ms = fastest_ms == 0 ? estimate.step_ms : std::min(fastest_ms, estimate.step_ms);
  }
  const auto is_slow = [&](const Estimate& estimate) {
    return !estimate.is_reference &&
           (estimate.no_fast_path || estimate.step_ms > kSlowFactor * fastest_ms);
  };
  double round_ms = 0;
  for (const Estimate& estimate : estimates) {
    if (!estimate.gave_up && !is_slow(estimate)) round_ms += estimate.step_ms;
  }

  std::vector<StepPlan> plans;
  for (const Estimate& estimate : estimates) {
    if (estimate.gave_up) {
      plans.push_back({.warmup = 0, .rounds = 0, .shortened = true});
      continue;
    }
    StepPlan plan = {.warmup = options.warmup, .rounds = options.rounds, .shortened = false};
    if (options.rounds == 0) {
      plan.rounds =
          rounds_within(options.seconds * 1000, round_ms > 0 ? round_ms : estimate.step_ms);
      const double affordable = kSlowBudgetMs / std::max(estimate.step_ms, 1e-3);
      if (is_slow(estimate) && affordable < plan.warmup + plan.rounds) {
        plan = {.warmup = 0,
                .rounds = affordable < 2 ? 0 : static_cast<int>(affordable),
                .shortened = true};
      }
    }
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace torchamp::cli
