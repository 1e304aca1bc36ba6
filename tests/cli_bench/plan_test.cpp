#include <gtest/gtest.h>

#include "cli/bench_plan.h"

namespace torchamp::cli {
namespace {

Estimate fp32(double step_ms) { return {.step_ms = step_ms, .is_reference = true}; }
Estimate bf16(double step_ms) { return {.step_ms = step_ms}; }
Estimate slow_fp16(double step_ms) { return {.step_ms = step_ms, .no_fast_path = true}; }

TEST(PlanSteps, FillsTheTimeWithRounds) {
  // 20 s / (600 + 400) ms
  const auto plans = plan_steps({fp32(600), bf16(400)}, {.seconds = 20, .warmup = 2});
  for (const StepPlan& plan : plans) {
    EXPECT_EQ(plan.rounds, 20);
    EXPECT_EQ(plan.warmup, 2);
    EXPECT_FALSE(plan.shortened);
  }
}

TEST(PlanSteps, TakesAtLeastThreeRounds) {
  EXPECT_EQ(plan_steps({fp32(60000), bf16(50000)}, {.seconds = 1})[0].rounds, 3);
}

TEST(PlanSteps, AnExplicitNumberOfRoundsHoldsForAll) {
  const auto plans =
      plan_steps({fp32(600), bf16(400), slow_fp16(40000)}, {.rounds = 7, .warmup = 1});
  for (const StepPlan& plan : plans) {
    EXPECT_EQ(plan.rounds, 7);
    EXPECT_EQ(plan.warmup, 1);
    EXPECT_FALSE(plan.shortened);
  }
}

TEST(PlanSteps, APrecisionWithoutFastPathGetsTwentySeconds) {
  const auto plans = plan_steps({fp32(600), bf16(400), slow_fp16(6000)}, {.seconds = 20});
  EXPECT_EQ(plans[2].rounds, 3);  // 20 s / 6 s
  EXPECT_EQ(plans[2].warmup, 0);
  EXPECT_TRUE(plans[2].shortened);
  EXPECT_EQ(plans[0].rounds, 20);  // its time is not taken from the others
  EXPECT_FALSE(plans[0].shortened);
}

TEST(PlanSteps, KeepsTheOneStepWhereNotEvenTwoFit) {
  const auto plans = plan_steps({fp32(600), bf16(400), slow_fp16(35000)}, {.seconds = 20});
  EXPECT_EQ(plans[2].rounds, 0);
  EXPECT_TRUE(plans[2].shortened);
}

TEST(PlanSteps, DoesNotShortenWhatIsCheapEvenWithoutFastPath) {
  const auto plans = plan_steps({fp32(10), bf16(10), slow_fp16(50)}, {.seconds = 1, .warmup = 2});
  EXPECT_EQ(plans[2].rounds, plans[0].rounds);
  EXPECT_FALSE(plans[2].shortened);
}

TEST(PlanSteps, NeverShortensTheReference) {
  const auto plans = plan_steps({fp32(12000), bf16(400)}, {.seconds = 20});
  EXPECT_FALSE(plans[0].shortened);
  EXPECT_EQ(plans[0].rounds, plans[1].rounds);
}

TEST(PlanSteps, DropsWhatDidNotFinishOneStep) {
  const auto plans =
      plan_steps({fp32(600), {.gave_up = true, .no_fast_path = true}}, {.seconds = 6});
  EXPECT_EQ(plans[0].rounds, 10);
  EXPECT_EQ(plans[1].rounds, 0);
  EXPECT_TRUE(plans[1].shortened);
}

TEST(PlanSteps, ASlowPrecisionAloneFillsItsOwnTime) {
  const auto plans = plan_steps({slow_fp16(1000)}, {.seconds = 10, .warmup = 2});
  EXPECT_EQ(plans[0].rounds, 10);
  EXPECT_FALSE(plans[0].shortened);
}

}  // namespace
}  // namespace torchamp::cli
