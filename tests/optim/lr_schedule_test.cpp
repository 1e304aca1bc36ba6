#include "torchamp/optim/lr_schedule.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"

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
