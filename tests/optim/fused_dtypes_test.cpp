// 16-bit parameters, low-memory moments, and the distance to LibTorch's own optimizers.

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "optim/python_loops.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

using optim::LowPrecisionWeights;
using optim::Moments;
using testing::num_different;

// Python's AdamW(fused=True) is this operator; LibTorch's C++ AdamW is a loop of operators.
struct FusedOperator {
  at::Tensor parameter, exp_avg, exp_avg_sq, step;

  explicit FusedOperator(const at::Tensor& start)
      : parameter(start.detach().clone()),
        exp_avg(torch::zeros_like(parameter)),
        exp_avg_sq(torch::zeros_like(parameter)),
        step(torch::zeros({}, torch::kFloat)) {}

  void run(const at::Tensor& gradient, double lr, double weight_decay) {
    step.add_(1);
    std::vector<at::Tensor> p{parameter}, g{gradient.clone()}, m{exp_avg}, v{exp_avg_sq}, none,
        steps{step};
    at::_fused_adamw_(p, g, m, v, none, steps, lr, 0.9, 0.999, weight_decay, 1e-8, false, false);
  }
};

// All three compute the same real numbers with about ten roundings a step, each of at most half a
// unit of its operand: of p itself (decay and sum), and of the update, which is at most
// lr * 1 / (1 - b1) in size.
TEST(FusedDtypes, IsWithinRoundingOfLibTorchsOptimizers) {
  torch::manual_seed(8);
  constexpr int kSteps = 20;
  constexpr double kLr = 1e-2;
  const at::Tensor start = torch::randn({5000});
  at::Tensor ours = start.clone().requires_grad_(), libtorch = start.clone().requires_grad_();
  FusedOperator python(start);
  optim::AdamW optimizer({ours}, optim::AdamWOptions(kLr));
  torch::optim::AdamW plain({libtorch}, torch::optim::AdamWOptions(kLr));
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gradient = torch::randn({5000});
    ours.mutable_grad() = gradient;
    libtorch.mutable_grad() = gradient;
    optimizer.step();
    plain.step();
    python.run(gradient, kLr, 1e-2);
  }
  const at::Tensor bound = kSteps * 0x1p-24 * (2 * start.abs() + 2 * kSteps * kLr + 20 * kLr * 10);
  EXPECT_TRUE((ours - libtorch).abs().le(bound).all().item<bool>());
  EXPECT_TRUE((ours - python.parameter).abs().le(bound).all().item<bool>());
  EXPECT_GT(num_different(ours, start), 4900);
}

// W8, W9: 16-bit parameters alone, as Python's fused optimizers take them: float32 inside, one
// rounding of weight and moments a step.
TEST(FusedDtypes, PlainBFloat16IsPythonsFusedWithinOneRounding) {
  torch::manual_seed(9);
  const at::Tensor start = torch::randn({3000}).to(torch::kBFloat16);
  at::Tensor ours = start.clone().requires_grad_();
  FusedOperator python(start);
  optim::AdamW optimizer({ours}, optim::AdamWOptions(1e-2),
                         {.low_precision_weights = LowPrecisionWeights::kPlain});
  const at::Tensor gradient = torch::randn({3000}).to(torch::kBFloat16);
  ours.mutable_grad() = gradient;
  optimizer.step();
  python.run(gradient, 1e-2, 1e-2);
  const at::Tensor a = ours.detach().to(torch::kFloat), b = python.parameter.to(torch::kFloat);
  // Both round the same number, but for a few float32 units before: at most one bfloat16 apart, and
  // seldom.
  EXPECT_TRUE((a - b).abs().le(b.abs() * 0x1p-7).all().item<bool>());
  EXPECT_LT(num_different(ours, python.parameter), 30);
  const auto& state = static_cast<const torch::optim::AdamWParamState&>(
      *optimizer.state().at(ours.unsafeGetTensorImpl()));
  EXPECT_EQ(state.exp_avg().scalar_type(), torch::kBFloat16);
}

// Case 42: moments and division in float32.
TEST(FusedDtypes, Case42EpsDoesNotVanishInFloat16) {
  for (const auto weights : {LowPrecisionWeights::kPlain, LowPrecisionWeights::kMaster}) {
    at::Tensor p = torch::ones({2}, torch::kHalf).requires_grad_();
    optim::FusedOptions fused;
    fused.low_precision_weights = weights;
    optim::Adam zero({p}, optim::AdamOptions(1e-3), fused);
    p.mutable_grad() = torch::zeros({2}, torch::kHalf);
    zero.step();
    EXPECT_EQ(p[0].item<float>(), 1.0F);
    optim::Adam small({p}, optim::AdamOptions(1e-3), fused);
    p.mutable_grad() = torch::full({2}, 1e-4, torch::kHalf);
    small.step();
    EXPECT_EQ(p[0].item<float>(), 0.9990234375F);
  }
}

// W8: one optimizer, one call, all dtypes.
TEST(FusedDtypes, OneOptimizerHoldsAllDtypes) {
  std::vector<at::Tensor> parameters;
  for (const auto dtype : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
    parameters.push_back(torch::ones({3}, dtype).requires_grad_());
    parameters.back().mutable_grad() = torch::full({3}, 2.0, dtype);
  }
  parameters.push_back(torch::ones({3}, torch::kBFloat16).requires_grad_());
  parameters.back().mutable_grad() = torch::full({3}, 2.0);  // a float32 gradient of a bf16 weight
  optim::SGD optimizer(parameters, optim::SGDOptions(0.25));
  optimizer.step();
  for (const at::Tensor& parameter : parameters) EXPECT_EQ(parameter[0].item<double>(), 0.5);
}

// U4, W9: 16-bit gradients under a scaler, with and without unscale_ and clipping, as float32 ones.
TEST(FusedDtypes, Float16GradientsPassTheScaler) {
  for (const bool unscales : {false, true}) {
    for (const double limit : {1e9, 0.5}) {
      at::Tensor half = torch::zeros({4}, torch::kHalf).requires_grad_();
      at::Tensor reference = torch::zeros({4}).requires_grad_();
      optim::SGD optimizer({half}, optim::SGDOptions(1));
      optim::SGD second({reference}, optim::SGDOptions(1));
      amp::GradScaler scaler({.init_scale = 65536}), other({.init_scale = 65536});
      scaler.scale(torch::zeros({}));
      other.scale(torch::zeros({}));
      // 2^-23 times the scale is far from float16's subnormals, unscaled it is nearly 0 in float16.
      half.mutable_grad() = torch::tensor({0x1p-7F, 3 * 0x1p-7F, -1.0F, 60000.0F}).to(torch::kHalf);
      reference.mutable_grad() = half.grad().to(torch::kFloat);
      const at::Tensor before = half.grad().clone();
      if (unscales) {
        scaler.unscale_(optimizer);
        other.unscale_(second);
        const at::Tensor norm = clip_grad_norm_({half}, limit);
        EXPECT_EQ(num_different(norm, clip_grad_norm_({reference}, limit)), 0);
        EXPECT_EQ(num_different(half.grad(), before), 0);  // factors are noted, not multiplied
      } else {
        optimizer.set_max_grad_norm(limit);
        second.set_max_grad_norm(limit);
      }
      EXPECT_TRUE(scaler.step(optimizer).applied());
      EXPECT_TRUE(other.step(second).applied());
      EXPECT_EQ(num_different(half, reference.detach().to(torch::kHalf)), 0);
      EXPECT_EQ(num_different(half.grad(), reference.grad().to(torch::kHalf)), 0);
    }
  }
}

TEST(FusedDtypes, APlainOptimizerStillRefusesFloat16Gradients) {
  at::Tensor half = torch::zeros({1}, torch::kHalf).requires_grad_();
  half.mutable_grad() = torch::ones({1}, torch::kHalf);
  amp::GradScaler scaler({.init_scale = 8});
  scaler.scale(torch::zeros({}));
  {
    optim::SGD gone({half}, optim::SGDOptions(1));
    scaler.unscale_(gone);
    scaler.update();
  }
  torch::optim::SGD plain({half}, torch::optim::SGDOptions(1));
  EXPECT_THROW(scaler.unscale_(plain), c10::ValueError);
}

// A factor of an iteration that was left without a step does not reach the next one.
TEST(FusedDtypes, FactorsEndWithTheirIteration) {
  const auto run = [](at::ScalarType dtype) {
    at::Tensor p = torch::ones({4}, dtype).requires_grad_();
    optim::SGD optimizer({p}, optim::SGDOptions(0.125));
    p.mutable_grad() = torch::full({4}, std::numeric_limits<float>::quiet_NaN(), dtype);
    clip_grad_norm_({p}, 1.0);
    optimizer.zero_grad(/*set_to_none=*/false);
    p.mutable_grad().add_(torch::ones({4}, dtype));
    clip_grad_norm_({p}, 100.0);
    optimizer.step();
    return p[0].item<float>();
  };
  EXPECT_EQ(run(torch::kFloat), 0.875F);
  EXPECT_EQ(run(torch::kBFloat16), 0.875F);

  at::Tensor p = torch::ones({4}, torch::kHalf).requires_grad_();
  optim::SGD optimizer({p}, optim::SGDOptions(0.125));
  amp::GradScaler scaler({.init_scale = 1024});
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad(/*set_to_none=*/false);
    scaler.scale(p.sum()).backward();
    if (i == 0) {
      scaler.unscale_(optimizer);
      clip_grad_norm_({p}, 0.5);
    } else {
      scaler.step(optimizer);
    }
    scaler.update();
  }
  EXPECT_EQ(p[0].item<float>(), 0.875F);
  EXPECT_EQ(p.grad()[0].item<float>(), 1.0F);
}

// Whose gradients wait is asked of the optimizer that is unscaled, not of the parameter alone.
TEST(FusedDtypes, APlainOptimizerOfAFusedOnesParameterUnscalesInPlace) {
  at::Tensor p = torch::ones({4}, torch::kBFloat16).requires_grad_();
  optim::SGD fused({p}, optim::SGDOptions(0.125),
                   {.low_precision_weights = LowPrecisionWeights::kPlain});
  torch::optim::SGD plain({p}, torch::optim::SGDOptions(0.125));
  amp::GradScaler scaler({.init_scale = 1024});
  scaler.scale(p.sum()).backward();
  scaler.step(plain);
  EXPECT_EQ(p[0].item<float>(), 0.875F);
}

TEST(FusedDtypes, ClaimsAreThoseOfTheOptimizersAlive) {
  at::Tensor p = torch::ones({4}, torch::kBFloat16).requires_grad_();
  const auto clipped = [&] {  // whether the function rounds the gradient itself
    p.mutable_grad() = torch::ones({4}, torch::kBFloat16);
    clip_grad_norm_({p}, 1.0);
    return p.grad()[0].item<float>() != 1.0F;
  };
  auto first = std::make_unique<optim::SGD>(std::vector{p}, optim::SGDOptions(1));
  auto second = std::make_unique<optim::SGD>(std::vector{p}, optim::SGDOptions(1));
  first.reset();
  EXPECT_FALSE(clipped());
  second.reset();
  EXPECT_TRUE(clipped());
}

// bfloat16 has 8 bits: 1 - 1e-3 is 1 again. Rounded by chance, the mean of many weights moves as it
// should: each step of 1e-3 is a coin that falls with probability 1e-3 / 2^-8 below 1.
TEST(FusedDtypes, WeightsByChanceMoveAndPlainOnesDoNot) {
  constexpr int kSteps = 500;
  constexpr int64_t kWeights = 4096;
  const auto run = [&](LowPrecisionWeights weights, uint64_t seed) {
    at::Tensor p = torch::ones({kWeights}, torch::kBFloat16).requires_grad_();
    optim::FusedOptions fused;
    fused.low_precision_weights = weights;
    fused.seed = seed;
    optim::SGD optimizer({p}, optim::SGDOptions(1e-3), fused);
    for (int step = 0; step < kSteps; ++step) {
      p.mutable_grad() = torch::ones({kWeights}, torch::kBFloat16);
      optimizer.step();
    }
    return p.detach().clone();
  };
  EXPECT_EQ(run(LowPrecisionWeights::kPlain, 0).to(torch::kFloat).min().item<float>(), 1.0F);
  const at::Tensor once = run(LowPrecisionWeights::kStochastic, 1);
  // A walk of 500 steps, each with a variance below 1e-3 * 2^-8: the mean of 4096 has a standard
  // deviation below 7e-4; five of them.
  EXPECT_NEAR(once.to(torch::kFloat).mean().item<double>(), 0.5, 5 * 7e-4);
  EXPECT_EQ(num_different(once, run(LowPrecisionWeights::kStochastic, 1)), 0);
  EXPECT_GT(num_different(once, run(LowPrecisionWeights::kStochastic, 2)), kWeights / 2);
  at::Tensor half = torch::ones({1}, torch::kHalf).requires_grad_();
  half.mutable_grad() = torch::ones({1}, torch::kHalf);
  optim::SGD refuses({half}, optim::SGDOptions(1),
                     {.low_precision_weights = LowPrecisionWeights::kStochastic});
  EXPECT_THROW(refuses.step(), c10::ValueError);
}

// A second moment of constant gradients goes to g^2; rounded to nearest it would stand still at
// bfloat16's spacing, since a step is a thousandth of the distance.
TEST(FusedDtypes, LowMemoryMomentsKeepTheirMean) {
  for (const Moments moments : {Moments::kBFloat16, Moments::k8Bit}) {
    at::Tensor p = torch::zeros({8192}).requires_grad_();
    optim::AdamW optimizer({p}, optim::AdamWOptions(1e-3).weight_decay(0), {.moments = moments});
    constexpr int kSteps = 400;
    for (int step = 0; step < kSteps; ++step) {
      p.mutable_grad() = torch::full({8192}, 0.5);
      optimizer.step();
    }
    const base::StateDict dict = optim::optimizer_state_dict(optimizer);
    const auto& state = dict.at("state").to_dict("").at(int64_t{0}).to_dict("");
    const at::Tensor v = state.at("exp_avg_sq").to_tensor("").to(torch::kFloat);
    const double right = 0.25 * (1 - std::pow(0.999, kSteps));
    EXPECT_NEAR(v.mean().item<double>(), right, 0.02 * right);
    // Every step is lr * m / sqrt(v), bias corrected: 1e-3 each, within the noise of the moments.
    EXPECT_NEAR(p.mean().item<double>(), -1e-3 * kSteps, 0.02 * 1e-3 * kSteps);
  }
}

TEST(FusedDtypes, MomentsTakeTheMemoryTheyPromise) {
  const std::pair<Moments, at::ScalarType> all[] = {{Moments::kFloat32, torch::kFloat},
                                                    {Moments::kBFloat16, torch::kBFloat16},
                                                    {Moments::k8Bit, torch::kByte}};
  for (const auto& [moments, dtype] : all) {
    at::Tensor p = torch::zeros({1000}).requires_grad_();
    p.mutable_grad() = torch::ones({1000});
    optim::AdamW optimizer({p}, optim::AdamWOptions(1e-3), {.moments = moments});
    optimizer.step();
    const auto& state = static_cast<const torch::optim::AdamWParamState&>(
        *optimizer.state().at(p.unsafeGetTensorImpl()));
    EXPECT_EQ(state.exp_avg().scalar_type(), dtype);
    EXPECT_EQ(state.exp_avg_sq().scalar_type(), dtype);
  }
}

}  // namespace
}  // namespace torchamp
