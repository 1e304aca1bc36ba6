#include "torchamp/optim/lr_schedule.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace torchamp::optim {
namespace {

torch::optim::SGD make_sgd(double first, double second) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1)},
                      std::make_unique<torch::optim::SGDOptions>(first));
  groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1)},
                      std::make_unique<torch::optim::SGDOptions>(second));
  return torch::optim::SGD(std::move(groups), torch::optim::SGDOptions(first));
}

TEST(WarmupCosine, FollowsItsFormula) {
  // Values worked out by hand: cos(pi p) at p = 0, 1/4, 1/2, 3/4, 1 is 1, r, 0, -r, -1 with
  // r = sqrt(1/2).
  const WarmupCosineOptions options{4, 8, 0.0};
  const double r = std::sqrt(0.5);
  const std::vector<double> expected = {0.25,        0.5, 0.75,        1.0, 1.0,
                                        (1 + r) / 2, 0.5, (1 - r) / 2, 0.0, 0.0};
  for (size_t step = 0; step < expected.size(); ++step) {
    EXPECT_NEAR(warmup_cosine_factor(static_cast<int64_t>(step), options), expected[step], 1e-15)
        << step;  // three roundings of values below 1
  }
  EXPECT_NEAR(warmup_cosine_factor(6, {4, 8, 0.5}), 0.75, 1e-15);
}

TEST(WarmupCosine, StaysConstantWithoutAnEnd) {
  EXPECT_EQ(warmup_cosine_factor(0, {0, 0, 0.0}), 1.0);
  EXPECT_EQ(warmup_cosine_factor(1000000, {10, 0, 0.0}), 1.0);
}

TEST(WarmupCosine, ScalesEveryGroupsOwnRate) {
  torch::optim::SGD sgd = make_sgd(1.0, 0.1);
  WarmupCosine schedule(sgd, {2, 0, 0.0});
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(sgd.param_groups()[1].options().get_lr(), 0.05);
  schedule.step();
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 1.0);
  EXPECT_EQ(sgd.param_groups()[1].options().get_lr(), 0.1);
  EXPECT_EQ(schedule.lr(), 1.0);
}

// Case 4: gradients inf, inf, then 1024, which is 4 at the scale of 256 that two skips leave.
template <typename Optimizer, typename Schedule>
void expect_case_4(const char* name, Optimizer& optimizer, Schedule& schedule,
                   torch::Tensor& weight, const std::vector<double>& rates, double last_weight) {
  GradScaler scaler({.init_scale = 1024.0});
  FollowAppliedSteps follow(schedule);
  const std::vector<float> gradients = {INFINITY, INFINITY, 1024.0F};
  for (size_t i = 0; i < gradients.size(); ++i) {
    scaler.scale(torch::zeros({}));
    weight.mutable_grad() = torch::full({1}, gradients[i]);
    const amp::StepOutcome outcome = scaler.step(optimizer);
    EXPECT_EQ(outcome.skipped(), i < 2) << name;
    EXPECT_EQ(follow.step(outcome), i == 2) << name;
    scaler.update();
    EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), rates[i]) << name << ", " << i;
  }
  EXPECT_EQ(follow.num_applied(), 1) << name;
  EXPECT_NEAR(weight.item<double>(), last_weight, 1e-6) << name;
}

TEST(FollowAppliedSteps, StandsStillWhileStepsAreSkipped) {
  auto weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
  torch::optim::StepLR schedule(sgd, 1, 0.5);
  expect_case_4("StepLR", sgd, schedule, weight, {1.0, 1.0, 0.5}, -3.0);
}

TEST(FollowAppliedSteps, FollowsFusedOptimizersAlike) {  // case 25
  auto first = torch::ones({1}).requires_grad_(), second = torch::ones({1}).requires_grad_();
  SGD sgd({first}, SGDOptions(1.0));
  torch::optim::StepLR sgd_schedule(sgd, 1, 0.5);
  expect_case_4("fused SGD", sgd, sgd_schedule, first, {1.0, 1.0, 0.5}, -3.0);
  AdamW adamw({second}, AdamWOptions(1.0).weight_decay(0.0));
  torch::optim::StepLR adamw_schedule(adamw, 1, 0.5);
  // The first direction of Adam is the gradient's sign.
  expect_case_4("fused AdamW", adamw, adamw_schedule, second, {1.0, 1.0, 0.5}, 0.0);
}

TEST(FollowAppliedSteps, GivesPythonsRates) {
  auto weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
  torch::optim::StepLR scheduler(sgd, 3, 0.5);
  FollowAppliedSteps schedule(scheduler);
  std::vector<double> rates;
  for (int i = 0; i < 7; ++i) {
    schedule.step(true);
    rates.push_back(sgd.param_groups()[0].options().get_lr());
  }
  // StepLR(optimizer, 3, 0.5) of PyTorch 2.15 after one to seven steps.
  EXPECT_EQ(rates, (std::vector<double>{1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25}));
}

TEST(FollowAppliedSteps, TakesAnyObjectThatSteps) {
  auto weight = torch::ones({1}).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
  WarmupCosine schedule(sgd, {2, 0, 0.0});  // 1/2, then 1
  expect_case_4("WarmupCosine", sgd, schedule, weight, {0.5, 0.5, 1.0}, -1.0);
  torch::optim::ReduceLROnPlateauScheduler plateau(
      sgd, torch::optim::ReduceLROnPlateauScheduler::min, 0.5F, /*patience=*/0);
  FollowAppliedSteps follow(plateau);
  EXPECT_TRUE(follow.step(true, 1.0F));
  EXPECT_FALSE(follow.step(false, 2.0F));
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 1.0);
  EXPECT_TRUE(follow.step(true, 2.0F));  // worse: half of the rate
  EXPECT_EQ(sgd.param_groups()[0].options().get_lr(), 0.5);
}

TEST(WarmupCosine, ResumesAtTheSameRate) {
  torch::optim::SGD first = make_sgd(1.0, 0.1);
  WarmupCosine schedule(first, {2, 10, 0.0});
  for (int i = 0; i < 5; ++i) schedule.step();
  torch::optim::SGD second = make_sgd(1.0, 0.1);
  WarmupCosine resumed(second, {2, 10, 0.0});
  resumed.load_state_dict(schedule.state_dict());
  EXPECT_EQ(resumed.last_step(), 5);
  EXPECT_EQ(second.param_groups()[0].options().get_lr(),
            first.param_groups()[0].options().get_lr());
  EXPECT_EQ(second.param_groups()[1].options().get_lr(),
            first.param_groups()[1].options().get_lr());
}

TEST(WarmupCosine, RefusesWhatHasNoMeaning) {
  torch::optim::SGD sgd = make_sgd(1.0, 0.1);
  EXPECT_THROW(WarmupCosine(sgd, {-1, 0, 0.0}), base::UsageError);
  EXPECT_THROW(WarmupCosine(sgd, {5, 5, 0.0}), base::UsageError);
  EXPECT_THROW(WarmupCosine(sgd, {0, 5, 1.5}), base::UsageError);
  EXPECT_THROW(WarmupCosine(sgd, {0, 5, std::nan("")}), base::UsageError);
}

}  // namespace
}  // namespace torchamp::optim
