// GradScaler: unscale_, step and update with one and several optimizers. Scales are powers of two,
// so every expected number is exact.

#include <new>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;
using Reason = amp::StepOutcome::Reason;

TEST(GradScalerStep, UnscalesThenStepsAndReportsApplied) {
  auto scaler = ready(1024);
  const auto p = P(1, 2048);
  const auto optimizer = sgd({p});
  const auto outcome = scaler.step(*optimizer);
  EXPECT_TRUE(outcome.applied());
  EXPECT_TRUE(static_cast<bool>(outcome));
  EXPECT_EQ(outcome.reason(), Reason::kApplied);
  EXPECT_EQ(outcome.to_string(), "applied");
  EXPECT_EQ(value(p), -1.0F);
  EXPECT_EQ(grad(p), 2.0F);
  EXPECT_EQ(scaler.applied_steps(), 1);
}

TEST(GradScalerStep, SkipsAndSaysInfOrNan) {
  for (const auto& [gradient, reason, text] :
       {std::tuple{kInf, Reason::kInf, "skipped: inf gradient"},
        std::tuple{-kInf, Reason::kInf, "skipped: inf gradient"},
        std::tuple{kNan, Reason::kNan, "skipped: nan gradient"}}) {
    auto scaler = ready(1024);
    const auto good = P(1, 1024);
    const auto bad = P(1, gradient);
    const auto optimizer = sgd({good, bad});
    const auto outcome = scaler.step(*optimizer);
    scaler.update();
    EXPECT_TRUE(outcome.skipped());
    EXPECT_EQ(outcome.reason(), reason);
    EXPECT_EQ(outcome.to_string(), text);
    EXPECT_FALSE(outcome.loss().defined());
    EXPECT_EQ(value(good), 1.0F);
    EXPECT_EQ(value(bad), 1.0F);
    EXPECT_EQ(scaler.get_scale(), 512.0);
    EXPECT_EQ(scaler.skipped_steps(), 1);
    EXPECT_EQ(scaler.applied_steps(), 0);
  }
}

TEST(GradScalerStep, LeavesGradientsUnscaledAfterASkip) {
  auto scaler = ready(1024);
  const auto finite = P(1, 2048);
  const auto infinite = P(1, kInf);
  const auto optimizer = sgd({finite, infinite});
  EXPECT_TRUE(scaler.step(*optimizer).skipped());
  EXPECT_EQ(grad(finite), 2.0F);
  EXPECT_EQ(grad(infinite), kInf);
}

TEST(GradScalerStep, ReportsInfAlthoughClippingTurnedItIntoNan) {
  auto scaler = ready(1024);
  const auto p = P(1, kInf);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  p.mutable_grad().mul_(0.0);  // inf * 0 = NaN
  EXPECT_EQ(scaler.step(*optimizer).reason(), Reason::kInf);
}

TEST(GradScalerStep, RefusesAnOptimizerWithoutGradients) {
  auto scaler = ready(1024);
  const auto optimizer = sgd({P(1)});
  const auto text = error_of([&] { scaler.step(*optimizer); });
  expect_contains(text, "No inf checks were recorded for this optimizer");
  expect_contains(text, "none of its 1 parameters has a gradient");
  expect_contains(error_of([&] { scaler.update(); }),
                  "No inf checks were recorded prior to update");
}

TEST(GradScalerStep, UpdatesWhenAnotherOptimizerRecorded) {
  auto scaler = ready(1024);
  const auto p1 = P(1, 1024);
  const auto p2 = P(1);
  const auto o1 = sgd({p1});
  const auto o2 = sgd({p2});
  scaler.step(*o1);
  EXPECT_THROW(scaler.step(*o2), c10::Error);
  scaler.update();
  EXPECT_EQ(value(p1), 0.0F);
  EXPECT_EQ(value(p2), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 1024.0);
}

TEST(GradScalerStep, CanBeRetriedOnceAGradientIsThere) {
  auto scaler = ready(1024);
  const auto p = P(1);
  const auto optimizer = sgd({p});
  EXPECT_THROW(scaler.step(*optimizer), c10::Error);
  set_grad(p, 1024);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
}

TEST(GradScalerStep, RefusesUnscalingTwiceAndLeavesTheGradient) {
  auto scaler = ready(1024);
  const auto p = P(1, 2048);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 2.0F);
  expect_contains(error_of([&] { scaler.unscale_(*optimizer); }),
                  "unscale_() has already been called on this optimizer since the last update().");
  EXPECT_EQ(grad(p), 2.0F);
}

TEST(GradScalerStep, NamesTheMissingUpdate) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  const auto second = error_of([&] { scaler.step(*optimizer); });
  expect_contains(second, "step() has already been called since the last update().");
  expect_contains(second, "Add scaler.update()");
  expect_contains(error_of([&] { scaler.unscale_(*optimizer); }),
                  "unscale_() is being called after step().");
}

TEST(GradScalerStep, CountsAnIterationThatWasOnlyUnscaled) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 1.0F);
  scaler.update();
  EXPECT_EQ(tracker(scaler), 1);
  set_grad(p, 1024);
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 1.0F);
}

TEST(GradScalerStep, NeedsAScaledLossFirst) {
  GradScaler scaler;
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  const std::string cause =
      "but _scale is None.  This may indicate your script did not use scaler.scale(loss or "
      "outputs) earlier in the iteration.";
  expect_contains(error_of([&] { scaler.unscale_(*optimizer); }), "Attempted unscale_ " + cause);
  expect_contains(error_of([&] { scaler.step(*optimizer); }), "Attempted step " + cause);
  expect_contains(error_of([&] { scaler.update(); }), "Attempted update " + cause);
  expect_contains(error_of([&] { scaler.update(2.0); }), "Attempted update " + cause);
  EXPECT_EQ(grad(p), 1.0F);
}

TEST(GradScalerStep, LetsTheScheduleFollowOnlyAppliedSteps) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1);
  const auto optimizer = sgd({p});
  double lr = 1.0;
  std::vector<double> rates;
  for (const float gradient : {kInf, kInf, 1024.0F}) {
    set_grad(p, gradient);
    if (scaler.step(*optimizer)) {
      lr *= 0.5;
    }
    scaler.update();
    rates.push_back(lr);
  }
  EXPECT_EQ(rates, (std::vector<double>{1.0, 1.0, 0.5}));
  EXPECT_EQ(value(p), -3.0F);  // 1 - 1 * 1024 / 256
}

TEST(GradScalerOptimizers, OneOverflowDoesNotSkipTheOther) {
  auto scaler = ready(1024);
  const auto p1 = P(1, 1024);
  const auto p2 = P(1, kInf);
  const auto o1 = sgd({p1});
  const auto o2 = sgd({p2});
  EXPECT_TRUE(scaler.step(*o1).applied());
  EXPECT_TRUE(scaler.step(*o2).skipped());
  scaler.update();
  EXPECT_EQ(value(p1), 0.0F);
  EXPECT_EQ(value(p2), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_EQ(tracker(scaler), 0);
}

TEST(GradScalerOptimizers, TwoOverflowsBackOffOnce) {
  auto scaler = ready(1024);
  const auto p1 = P(1, kNan);
  const auto p2 = P(1, kInf);
  const auto o1 = sgd({p1});
  const auto o2 = sgd({p2});
  EXPECT_TRUE(scaler.step(*o1).skipped());
  EXPECT_TRUE(scaler.step(*o2).skipped());
  scaler.update();
  EXPECT_EQ(value(p1), 1.0F);
  EXPECT_EQ(value(p2), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 512.0);
}

TEST(GradScalerOptimizers, UnscaleASharedParameterOnceAndSaySo) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, 1048576);
  const auto o1 = sgd({p});
  const auto o2 = sgd({p});
  scaler.unscale_(*o1);
  scaler.unscale_(*o2);
  EXPECT_EQ(grad(p), 1024.0F);
  EXPECT_EQ(warnings.count("belongs to both"), 1);
  EXPECT_TRUE(scaler.step(*o1).applied());
  EXPECT_TRUE(scaler.step(*o2).applied());
  EXPECT_EQ(grad(p), 1024.0F);
  EXPECT_EQ(value(p), 1.0F - 2 * 1024.0F);
}

TEST(GradScalerOptimizers, SharedParameterIsStillSharedAfterClippingInPlace) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, 2048);
  const auto o1 = sgd({p});
  const auto o2 = sgd({p});
  scaler.unscale_(*o1);
  p.mutable_grad().mul_(0.5);
  scaler.unscale_(*o2);
  EXPECT_EQ(grad(p), 1.0F);
}

TEST(GradScalerOptimizers, SharedParameterWithAFreshGradientIsUnscaledAgain) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1);
  const auto o1 = sgd({p});
  const auto o2 = sgd({p});
  for (const bool set_to_none : {true, false}) {
    o1->zero_grad(set_to_none);
    scaler.scale(p.sum()).backward();
    scaler.step(*o1);
    EXPECT_EQ(grad(p), 1.0F);
    o1->zero_grad(set_to_none);
    scaler.scale(3 * p.sum()).backward();
    scaler.step(*o2);
    EXPECT_EQ(grad(p), 3.0F) << "set_to_none " << set_to_none;
    scaler.update();
  }
  EXPECT_TRUE(warnings.texts().empty());
}

TEST(GradScalerOptimizers, SharedParameterScaledAnewAfterUnscaleIsUnscaledAgain) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1);
  const auto o1 = sgd({p});
  const auto o2 = sgd({p});
  scaler.scale(p.sum()).backward();
  scaler.unscale_(*o1);
  o1->zero_grad(/*set_to_none=*/false);
  scaler.scale(3 * p.sum()).backward();  // into the same tensor
  scaler.unscale_(*o2);
  EXPECT_EQ(grad(p), 3.0F);
}

// Weight decay the way some optimizers do it: added to the gradient itself.
class GradientWritingOptimizer : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    for (const auto& p : param_groups()[0].params()) {
      p.mutable_grad().add_(p.detach(), 0.5);
    }
    return torch::optim::SGD::step(std::move(closure));
  }
};

TEST(GradScalerOptimizers, SharedGradientThatAStepWroteToStaysUnscaled) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, 1024);
  GradientWritingOptimizer o1({p}, torch::optim::SGDOptions(1.0));
  const auto o2 = sgd({p});
  scaler.step(o1);
  EXPECT_EQ(grad(p), 1.5F);
  scaler.step(*o2);
  EXPECT_EQ(grad(p), 1.5F);
  EXPECT_EQ(value(p), 1.0F - 1.5F - 1.5F);
}

TEST(GradScalerOptimizers, OverflowInASharedGradientSkipsBoth) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, kInf);
  const auto q = P(1, 1024);
  const auto o1 = sgd({p});
  const auto o2 = sgd({p, q});
  EXPECT_TRUE(scaler.step(*o1).skipped());
  EXPECT_TRUE(scaler.step(*o2).skipped());
  EXPECT_EQ(value(q), 1.0F);
}

TEST(GradScalerOptimizers, ParameterListedTwiceIsUnscaledOnce) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p, p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 1.0F);
}

TEST(GradScalerOptimizers, TwoParametersSharingOneGradientAreUnscaledOnce) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto q = P(1);
  q.mutable_grad() = p.grad().detach();  // another tensor object over the same memory
  const auto optimizer = sgd({p, q});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 1.0F);
}

TEST(GradScalerOptimizers, OptimizerAtAReusedAddressIsAnother) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto q = P(1, 2048);
  alignas(torch::optim::SGD) std::byte memory[sizeof(torch::optim::SGD)];
  const torch::optim::SGDOptions options(1.0);
  auto* optimizer = new (memory) torch::optim::SGD({p}, options);
  scaler.step(*optimizer);
  optimizer->~SGD();
  optimizer = new (memory) torch::optim::SGD({q}, options);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(q), -1.0F);
  optimizer->~SGD();
  scaler.update();
  EXPECT_EQ(tracker(scaler), 1);
}

TEST(GradScalerOptimizers, AddingAGroupKeepsTheIdentity) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto q = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({q}));
  EXPECT_THROW(scaler.unscale_(*optimizer), c10::Error);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
  EXPECT_EQ(value(q), 0.0F);  // unscaled by step(), as it appeared after unscale_
}

TEST(GradScalerRecheck, UnscalesAGradientThatAppearsAfterUnscale) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto q = P(1);
  const auto optimizer = sgd({p, q});
  scaler.unscale_(*optimizer);
  set_grad(q, 1024);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
  EXPECT_EQ(value(q), 0.0F);
}

TEST(GradScalerRecheck, SkipsWhenAGradientTurnedInfAfterUnscale) {
  for (const bool in_place : {true, false}) {
    auto scaler = ready(1024);
    const auto p = P(1, 1024);
    const auto optimizer = sgd({p});
    scaler.unscale_(*optimizer);
    if (in_place) {
      p.mutable_grad().data().fill_(kInf);  // past the version counter, too
    } else {
      set_grad(p, kInf);
    }
    const auto outcome = scaler.step(*optimizer);
    scaler.update();
    EXPECT_EQ(outcome.reason(), Reason::kInf);
    EXPECT_EQ(value(p), 1.0F);
    EXPECT_EQ(scaler.get_scale(), 512.0);
  }
}

TEST(GradScalerRecheck, TakesAReplacedGradientAsUnscaled) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  p.mutable_grad() = p.grad() * 0.5;  // clipping out of place
  scaler.step(*optimizer);
  EXPECT_EQ(value(p), 0.5F);
}

TEST(GradScalerRecheck, FindsAValueThatOverflowsOnlyWhenUnscaled) {
  // 1e38 / 2^-10 is beyond float32, although 1e38 is not.
  auto scaler = ready(0x1p-10);
  const auto p = P(1, 1e38F);
  const auto optimizer = sgd({p});
  EXPECT_TRUE(scaler.step(*optimizer).skipped());
  EXPECT_EQ(value(p), 1.0F);
}

TEST(GradScalerMisuse, UpdateBetweenTwoOptimizersIsOneWarningOnlyIfTheScaleChanged) {
  for (const bool overflow : {false, true}) {
    auto scaler = ready(1024);
    const Warnings warnings;
    for (int round = 0; round < 2; ++round) {
      const auto p1 = P(1, overflow ? kInf : 1024);
      const auto p2 = P(1, 1024);
      const auto o1 = sgd({p1});
      const auto o2 = sgd({p2});
      scaler.scale(torch::zeros({}));
      scaler.step(*o1);
      scaler.update();
      scaler.step(*o2);
      scaler.update();
    }
    EXPECT_EQ(warnings.count("The last update() changed the scale"), overflow ? 1 : 0);
    EXPECT_EQ(warnings.texts().size(), overflow ? 1U : 0U);
  }
}

TEST(GradScalerMisuse, ClosureIsRefusedBeforeAnythingHappens) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  int calls = 0;
  expect_contains(error_of([&] {
                    scaler.step(*optimizer, [&] {
                      ++calls;
                      return at::Tensor();
                    });
                  }),
                  "Closure use is not currently supported if GradScaler is enabled");
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(value(p), 1.0F);
  EXPECT_EQ(grad(p), 1024.0F);
}

class ThrowingOptimizer : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  bool throws = true;
  torch::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(!throws, "step failed");
    return torch::optim::SGD::step(std::move(closure));
  }
};

TEST(GradScalerMisuse, ExceptionInsideTheOptimizerLeavesTheIterationUsable) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  ThrowingOptimizer optimizer({p}, torch::optim::SGDOptions(1.0));
  expect_contains(error_of([&] { scaler.step(optimizer); }), "step failed");
  optimizer.throws = false;
  EXPECT_TRUE(scaler.step(optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);  // divided once
  scaler.update();
  EXPECT_EQ(tracker(scaler), 1);
}

TEST(GradScalerAutocast, StepInsideARegionIsSeenByTheNextForward) {
  // One region around the whole loop: with w = 1, x = 1 and learning rate 1 the output falls by 1.
  auto scaler = ready(1024);
  const auto w = torch::ones({1, 1}).requires_grad_();
  const auto x = torch::ones({1, 1});
  const auto optimizer = sgd({w});
  std::vector<float> outputs;
  {
    const amp::Autocast region(at::kCPU, at::kBFloat16);
    for (int i = 0; i < 3; ++i) {
      optimizer->zero_grad();
      const auto y = at::linear(x, w);
      outputs.push_back(y.item<float>());
      scaler.scale(y.sum()).backward();
      scaler.step(*optimizer);
      scaler.update();
    }
  }
  {
    const amp::Autocast region(at::kCPU, at::kBFloat16);
    outputs.push_back(at::linear(x, w).item<float>());
  }
  EXPECT_EQ(outputs, (std::vector<float>{1, 0, -1, -2}));
}

}  // namespace
}  // namespace torchamp::test
