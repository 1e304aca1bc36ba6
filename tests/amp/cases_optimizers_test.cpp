// What users report about mixed precision, case by case: GradScaler with LibTorch's own optimizers.
// The numbers are those of tests/reference_map.tsv; cases that other tests already show are named
// there.

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "amp/support.h"
#include "torchamp/optim/state.h"

namespace torchamp::test {
namespace {

using Parameters = std::vector<at::Tensor>;
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)>;

template <typename Optimizer, typename Options>
MakeOptimizer make(const Options& options) {
  return [options](Parameters parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

// One iteration with a gradient of the given true value in every element of `p`.
amp::StepOutcome iterate(amp::GradScaler& scaler, torch::optim::Optimizer& optimizer,
                         const at::Tensor& p, float gradient, bool explicit_unscale) {
  optimizer.zero_grad();
  scaler.scale((p * gradient).sum()).backward();
  if (explicit_unscale) {
    scaler.unscale_(optimizer);
  }
  auto outcome = scaler.step(optimizer);
  scaler.update();
  return outcome;
}

// From 1, after each step whose gradient was 1; an inf leaves the value and the count alone.
struct Run {
  const char* name;
  MakeOptimizer make;
  float first, second;
};

std::vector<Run> runs() {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): eight names of it follow
  return {
      {"SGD", make<SGD>(SGDOptions(0.1).momentum(0.9)), 0.9F, 0.71F},
      {"nesterov", make<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true)), 0.81F, 0.539F},
      {"dampened", make<SGD>(SGDOptions(0.1).momentum(0.9).dampening(0.5)), 0.9F, 0.76F},
      {"Adam", make<Adam>(AdamOptions(0.1)), 0.9F, 0.8F},
      {"AdamW", make<AdamW>(AdamWOptions(0.1).amsgrad(true)), 0.899F, 0.798101F},
      {"Adagrad", make<Adagrad>(AdagradOptions(0.1)), 0.9F, 0.829289F},
  };
}

TEST(Case23, ASkippedStepIsNoStepForAnyOptimizerWithAndWithoutUnscale) {
  for (const auto& run : runs()) {
    for (const bool explicit_unscale : {false, true}) {
      for (const int bad : {0, 1}) {
        SCOPED_TRACE(std::string(run.name) + (explicit_unscale ? ", unscale_" : "") + ", inf at " +
                     std::to_string(bad));
        auto scaler = ready(1024);
        const auto p = torch::ones({2}).requires_grad_();
        const auto optimizer = run.make({p});
        std::vector<float> values;
        for (int i = 0; i < 3; ++i) {
          const auto outcome =
              iterate(scaler, *optimizer, p, i == bad ? kInf : 1.0F, explicit_unscale);
          EXPECT_EQ(outcome.skipped(), i == bad);
          EXPECT_TRUE(p.detach()[0].equal(p.detach()[1]));
          values.push_back(p.detach()[0].item<float>());
        }
        // The expected numbers have six digits.
        EXPECT_NEAR(values[0], bad == 0 ? 1.0F : run.first, 1e-6);
        EXPECT_NEAR(values[1], run.first, 1e-6);
        EXPECT_NEAR(values[2], run.second, 1e-6);
      }
    }
  }
}

TEST(Case23, AdamsStepCounterCountsTakenStepsOnly) {
  auto scaler = ready(1024);
  const auto p = torch::ones({2}).requires_grad_();
  torch::optim::Adam optimizer({p}, torch::optim::AdamOptions(0.1));
  for (const float gradient : {1.0F, kInf, 1.0F}) {
    iterate(scaler, optimizer, p, gradient, false);
  }
  const auto state = optim::optimizer_state_dict(optimizer).at("state").to_dict();
  EXPECT_EQ(state.at(int64_t{0}).to_dict().at("step").to_double(), 2.0);
}

TEST(Case24, AnOverflowFoundByUnscaleLeavesParametersAndStateUntouched) {
  for (const auto& run : runs()) {
    auto scaler = ready(1024);
    const auto p = torch::ones({2}).requires_grad_();
    const auto optimizer = run.make({p});
    const size_t states = optimizer->state().size();  // Adagrad makes its sums at once
    EXPECT_TRUE(iterate(scaler, *optimizer, p, kInf, true).skipped()) << run.name;
    EXPECT_TRUE(p.detach().equal(torch::ones({2}))) << run.name;
    EXPECT_EQ(optimizer->state().size(), states) << run.name;
    EXPECT_EQ(scaler.get_scale(), 512.0);
  }
}

TEST(Case25, ASkipAtTheFloorIsReportedAlthoughTheScaleCannotFall) {
  auto scaler = ready({.init_scale = 4, .min_scale = 4});
  const auto p = torch::ones({2}).requires_grad_();
  const auto optimizer = sgd({p});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(iterate(scaler, *optimizer, p, kInf, i == 1).skipped());
    EXPECT_EQ(scaler.get_scale(), 4.0);
  }
  EXPECT_EQ(scaler.skipped_steps(), 3);
}

TEST(Case37, AGradientInAnotherLayoutReachesItsOwnElements) {
  const auto expect = [](MakeOptimizer make_optimizer, const at::Tensor& p,
                         const at::Tensor& gradient, const at::Tensor& expected) {
    for (const bool scaled : {false, true}) {
      const auto parameter = p.clone().requires_grad_();
      ASSERT_EQ(parameter.strides(), p.strides());
      const auto optimizer = make_optimizer({parameter});
      if (scaled) {
        parameter.mutable_grad() = gradient * 1024;
        ASSERT_EQ(parameter.grad().strides(), gradient.strides());
        auto scaler = ready(1024);
        EXPECT_TRUE(scaler.step(*optimizer).applied());
      } else {
        parameter.mutable_grad() = gradient.clone();
        optimizer->step();
      }
      EXPECT_TRUE(parameter.detach().allclose(expected, 0, 1e-6)) << parameter;
    }
  };
  using torch::optim::AdamW;
  using torch::optim::AdamWOptions;
  using torch::optim::SGD;
  using torch::optim::SGDOptions;
  const auto ramp = torch::arange(8.0F).view({1, 2, 2, 2});
  expect(make<SGD>(SGDOptions(1)),
         torch::zeros({1, 2, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast), ramp, -ramp);
  // Adam's first step is the sign of the gradient.
  expect(make<AdamW>(AdamWOptions(1).weight_decay(0)), torch::zeros({2, 3}),
         torch::tensor({{1.0F, -1.0F}, {1.0F, -1.0F}, {-1.0F, 1.0F}}).t(),
         torch::tensor({{-1.0F, -1.0F, 1.0F}, {1.0F, 1.0F, -1.0F}}));
}

TEST(Case40, ASkippedFirstStepMakesNoMomentumAndACheckpointOfItHoldsNone) {
  auto scaler = ready(1024);
  const auto p = torch::ones({2}).requires_grad_();
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5);
  torch::optim::SGD first({p}, options);
  EXPECT_TRUE(iterate(scaler, first, p, kInf, false).skipped());
  const auto saved = optim::optimizer_state_dict(first);
  EXPECT_TRUE(saved.at("state").to_dict().empty());
  torch::optim::SGD resumed({p}, options);
  optim::load_optimizer_state_dict(resumed, saved);
  iterate(scaler, resumed, p, 1.0F, false);
  EXPECT_NEAR(p.detach()[0].item<float>(), 0.9F, 1e-6);  // the whole gradient, undampened
  iterate(scaler, resumed, p, 1.0F, false);
  EXPECT_NEAR(p.detach()[0].item<float>(), 0.76F, 1e-6);
}

TEST(Case83, AStepThatThrowsLeavesNothingBehind) {
  auto scaler = ready(1024);
  const auto p = torch::ones({3}).requires_grad_();
  torch::optim::Adam optimizer({p}, torch::optim::AdamOptions(0.1));
  p.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{0, 2}}, at::kLong), torch::ones({2}), {3});
  expect_contains(error_of([&] { scaler.step(optimizer); }), "sparse");
  EXPECT_TRUE(p.detach().equal(torch::ones({3})));
  p.mutable_grad() = torch::ones({3});
  optimizer.step();  // a plain step with a gradient that was never scaled
  EXPECT_TRUE(p.detach().allclose(torch::full({3}, 0.9F), 0, 1e-6));
  scaler.update();
  EXPECT_TRUE(iterate(scaler, optimizer, p, 1.0F, false).applied());
  EXPECT_TRUE(p.detach().allclose(torch::full({3}, 0.8F), 0, 1e-6));
}

}  // namespace
}  // namespace torchamp::test
