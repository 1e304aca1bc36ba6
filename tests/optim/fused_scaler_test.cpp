// GradScaler with fused optimizers: the same outcome as with plain ones, in one pass.

#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "optim/python_loops.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

using testing::num_different;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

at::Tensor parameter_of(float value, int64_t size = 1) {
  return torch::full({size}, value).requires_grad_();
}

amp::GradScaler scaler_of(double scale) {
  amp::GradScaler scaler({.init_scale = scale, .growth_interval = 2000});
  scaler.scale(torch::zeros({}));
  return scaler;
}

// Case 23: grads inf, 1, 1 and 1, inf, 1 times the scale, with and without unscale_.
TEST(FusedScaler, Case23EqualsThePlainOptimizers) {
  struct Expected {
    const char* name;
    std::function<std::unique_ptr<torch::optim::Optimizer>(at::Tensor)> make;
    std::vector<std::vector<double>> weights;  // for each order of gradients
  };
  const Expected all[] = {
      {"SGD",
       [](at::Tensor p) {
         return std::make_unique<optim::SGD>(std::vector{p}, optim::SGDOptions(0.1).momentum(0.9));
       },
       {{1.0, 0.9, 0.71}, {0.9, 0.9, 0.71}}},
      {"nesterov",
       [](at::Tensor p) {
         return std::make_unique<optim::SGD>(std::vector{p},
                                             optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
       },
       {{1.0, 0.81, 0.539}, {0.81, 0.81, 0.539}}},
      {"Adam",
       [](at::Tensor p) {
         return std::make_unique<optim::Adam>(std::vector{p}, optim::AdamOptions(0.1));
       },
       {{1.0, 0.9, 0.8}, {0.9, 0.9, 0.8}}},
      {"AdamW amsgrad",
       [](at::Tensor p) {
         return std::make_unique<optim::AdamW>(std::vector{p},
                                               optim::AdamWOptions(0.1).amsgrad(true));
       },
       {{1.0, 0.899, 0.798101}, {0.899, 0.899, 0.798101}}}};
  const float gradients[2][3] = {{kInf, 1, 1}, {1, kInf, 1}};
  for (const Expected& expected : all) {
    for (int order = 0; order < 2; ++order) {
      for (const bool unscales : {false, true}) {
        at::Tensor p = parameter_of(1, 2);
        const auto optimizer = expected.make(p);
        amp::GradScaler scaler = scaler_of(1024);
        for (int i = 0; i < 3; ++i) {
          p.mutable_grad() =
              torch::full({2}, gradients[order][i] * static_cast<float>(scaler.get_scale()));
          if (unscales) scaler.unscale_(*optimizer);
          const amp::StepOutcome outcome = scaler.step(*optimizer);
          scaler.update();
          EXPECT_EQ(outcome.skipped(), i == order);
          EXPECT_NEAR(p[0].item<double>(), expected.weights[order][i], 2e-6)
              << expected.name << ", order " << order << ", step " << i;
        }
        EXPECT_EQ(scaler.get_scale(), 512);
      }
    }
  }
}

// Cases 24 and 40: a skipped step, the very first one too, leaves no state behind.
TEST(FusedScaler, ASkippedStepChangesNoParameterAndNoState) {
  at::Tensor p = parameter_of(1, 2);
  amp::GradScaler scaler = scaler_of(1024);
  optim::SGD optimizer({p}, optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
  const float gradients[] = {kInf, 1, 1};
  const double weights[] = {1.0, 0.9, 0.76};
  for (int i = 0; i < 3; ++i) {
    p.mutable_grad() = torch::full({2}, gradients[i] * static_cast<float>(scaler.get_scale()));
    const auto version = p._version();
    scaler.step(optimizer);
    scaler.update();
    if (i == 0) {
      EXPECT_TRUE(optimizer.state().empty());
      EXPECT_EQ(p._version(), version);
    }
    EXPECT_NEAR(p[0].item<double>(), weights[i], 1e-6);
  }
}

TEST(FusedScaler, TheStepCountMovesWithAppliedStepsOnly) {
  at::Tensor p = parameter_of(1, 2);
  amp::GradScaler scaler = scaler_of(8);
  optim::AdamW optimizer({p}, optim::AdamWOptions(0.1));
  for (const float gradient : {1.0F, kNaN, 1.0F, kInf}) {
    p.mutable_grad() = torch::full({2}, gradient * static_cast<float>(scaler.get_scale()));
    const amp::StepOutcome outcome = scaler.step(optimizer);
    using Reason = amp::StepOutcome::Reason;
    EXPECT_EQ(outcome.reason(), std::isnan(gradient)   ? Reason::kNan
                                : std::isinf(gradient) ? Reason::kInf
                                                       : Reason::kApplied);
    scaler.update();
  }
  const auto& state = static_cast<const torch::optim::AdamWParamState&>(
      *optimizer.state().at(p.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 2);
}

// Case 32: a gradient that turned inf after unscale_.
TEST(FusedScaler, Case32LooksAgainAtGradientsThatWereUnscaled) {
  at::Tensor p = parameter_of(1);
  amp::GradScaler scaler = scaler_of(1024);
  optim::Adam optimizer({p}, optim::AdamOptions(1));
  p.mutable_grad() = torch::full({1}, 1024.0);
  scaler.unscale_(optimizer);
  p.mutable_grad().fill_(kInf);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  scaler.update();
  EXPECT_EQ(p.item<float>(), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 512);
}

// Case 31 and 1 on the fused path.
TEST(FusedScaler, TakesGradientsThatAppearAfterUnscale) {
  at::Tensor p = parameter_of(1), q = parameter_of(1);
  amp::GradScaler scaler = scaler_of(1024);
  optim::SGD optimizer({p, q}, optim::SGDOptions(1));
  p.mutable_grad() = torch::full({1}, 1024.0);
  scaler.unscale_(optimizer);
  q.mutable_grad() = torch::full({1}, 1024.0);
  scaler.step(optimizer);
  EXPECT_EQ(p.item<float>(), 0.0F);
  EXPECT_EQ(q.item<float>(), 0.0F);
}

TEST(FusedScaler, Case1NoGradientIsTheSameErrorAsForPlainOptimizers) {
  at::Tensor p = parameter_of(1), q = parameter_of(1);
  amp::GradScaler scaler = scaler_of(1024);
  optim::SGD with({p}, optim::SGDOptions(1)), without({q}, optim::SGDOptions(1));
  p.mutable_grad() = torch::full({1}, 1024.0);
  scaler.step(with);
  EXPECT_THROW(scaler.step(without), c10::Error);
  scaler.update();
  EXPECT_EQ(p.item<float>(), 0.0F);
  EXPECT_EQ(q.item<float>(), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 1024);
}

// Case 81: what .grad holds after step().
TEST(FusedScaler, Case81LeavesGradientsUnscaledTakenOrSkipped) {
  for (const bool is_bad : {false, true}) {
    at::Tensor p = parameter_of(1), q = parameter_of(1);
    p.mutable_grad() = torch::full({1}, 2048.0);
    q.mutable_grad() = torch::full({1}, is_bad ? kInf : 1024.0F);
    amp::GradScaler scaler = scaler_of(1024);
    optim::AdamW optimizer({p, q}, optim::AdamWOptions(0.1));
    EXPECT_EQ(scaler.step(optimizer).skipped(), is_bad);
    EXPECT_EQ(p.grad().item<float>(), 2.0F);
    EXPECT_EQ(q.grad().item<float>(), is_bad ? kInf : 1.0F);
  }
}

TEST(FusedScaler, AnOptimizerThatConsumesLeavesNoGradientTakenOrSkipped) {
  for (const bool is_bad : {false, true}) {
    at::Tensor p = parameter_of(1);
    p.mutable_grad() = torch::full({1}, is_bad ? kInf : 1024.0F);
    amp::GradScaler scaler = scaler_of(1024);
    optim::SGD optimizer({p}, optim::SGDOptions(1), {.consume_gradients = true});
    EXPECT_EQ(scaler.step(optimizer).skipped(), is_bad);
    EXPECT_FALSE(p.grad().defined());
    EXPECT_EQ(p.item<float>(), is_bad ? 1.0F : 0.0F);
    scaler.update();
  }
}

// Case 83: an exception leaves nothing behind.
TEST(FusedScaler, Case83ARefusedStepLeavesNothingBehind) {
  at::Tensor p = torch::ones({2, 1}).requires_grad_();
  amp::GradScaler scaler = scaler_of(1024);
  optim::Adam optimizer({p}, optim::AdamOptions(0.1));
  const at::Tensor indices = torch::zeros({1, 1}, torch::kLong);
  const at::Tensor values = torch::full({1, 1}, 1024.0);
  p.mutable_grad() = torch::sparse_coo_tensor(indices, values, {2, 1});
  EXPECT_THROW(scaler.step(optimizer), c10::Error);
  EXPECT_EQ(values.item<float>(), 1024.0F);
  p.mutable_grad() = torch::ones({2, 1});
  optimizer.step();  // neither divided nor skipped
  EXPECT_NEAR(p[0].item<double>(), 0.9, 1e-6);
}

// The fused clip, and unscale_ with clip_grad_norm_, on gradients around the limit.
TEST(FusedScaler, ClipsToTheSameNumbersAsTheClassicOrder) {
  for (const double max_norm : {1e-3, 1.0, 50.0, 1e6}) {
    torch::manual_seed(5);
    std::vector<at::Tensor> fused, classic;
    for (const int64_t n : {1, 100, 70001}) {
      fused.push_back(torch::randn({n}).requires_grad_());
      classic.push_back(fused.back().detach().clone().requires_grad_());
    }
    optim::AdamW ours(fused, optim::AdamWOptions(1e-2), {.max_grad_norm = max_norm});
    optim::AdamW other(classic, optim::AdamWOptions(1e-2));
    amp::GradScaler scaler = scaler_of(1024), second = scaler_of(1024);
    for (int step = 0; step < 4; ++step) {
      for (size_t i = 0; i < fused.size(); ++i) {
        fused[i].mutable_grad() = torch::randn_like(fused[i]) * 1024;
        classic[i].mutable_grad() = fused[i].grad().clone();
      }
      scaler.step(ours);
      scaler.update();
      second.unscale_(other);
      const at::Tensor norm = clip_grad_norm_(classic, max_norm);
      second.step(other);
      second.update();
      EXPECT_EQ(num_different(norm, ours.last_grad_norm()), 0);
    }
    for (size_t i = 0; i < fused.size(); ++i) {
      EXPECT_EQ(num_different(fused[i], classic[i]), 0) << max_norm << ", " << i;
      EXPECT_EQ(num_different(fused[i].grad(), classic[i].grad()), 0) << max_norm << ", " << i;
    }
  }
}

TEST(FusedScaler, ClipsWithoutAScalerToo) {
  at::Tensor p = torch::zeros({2}).requires_grad_();
  p.mutable_grad() = torch::tensor({3.0F, 4.0F});
  optim::SGD optimizer({p}, optim::SGDOptions(1));
  optimizer.set_max_grad_norm(1.0);
  optimizer.step();
  EXPECT_NEAR(p[0].item<double>(), -0.6, 1e-6);
  EXPECT_NEAR(p[1].item<double>(), -0.8, 1e-6);
  EXPECT_EQ(optimizer.last_grad_norm().item<float>(), 5.0F);
  EXPECT_THROW(optimizer.set_max_grad_norm(-1.0), c10::ValueError);
  EXPECT_THROW(optimizer.set_max_grad_norm(kNaN), c10::ValueError);
}

// The scale beyond what float32 can hold: finite gradients whose quotient is not (decision 2).
TEST(FusedScaler, LooksAtTheUnscaledValue) {
  at::Tensor p = parameter_of(1);
  amp::GradScaler scaler({.init_scale = 1.0 / 1024, .min_scale = 1.0 / 4096});
  scaler.scale(torch::zeros({}));
  optim::SGD optimizer({p}, optim::SGDOptions(1));
  p.mutable_grad() = torch::full({1}, 1e38F);
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  EXPECT_EQ(p.item<float>(), 1.0F);
}

// Case 25: a skip is reported as for plain optimizers, and a schedule can follow.
TEST(FusedScaler, Case25ReportsSkips) {
  at::Tensor p = parameter_of(1);
  amp::GradScaler scaler = scaler_of(1024);
  optim::SGD optimizer({p}, optim::SGDOptions(1));
  int schedule_steps = 0;
  std::vector<bool> skipped;
  for (const float gradient : {kInf, kInf, 1024.0F}) {
    scaler.scale(torch::zeros({}));
    p.mutable_grad() = torch::full({1}, gradient);
    const amp::StepOutcome outcome = scaler.step(optimizer);
    scaler.update();
    skipped.push_back(outcome.skipped());
    schedule_steps += outcome.applied() ? 1 : 0;
  }
  EXPECT_EQ(skipped, (std::vector<bool>{true, true, false}));
  EXPECT_EQ(p.item<float>(), -3.0F);
  EXPECT_EQ(schedule_steps, 1);
}

}  // namespace
}  // namespace torchamp
