// What users report about mixed precision, case by case: ops, dtypes and memory under Autocast. The
// numbers are those of tests/reference_map.tsv; cases that other tests already show are named
// there.

#include <cmath>
#include <optional>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/train/meter.h"

namespace torchamp::test {
namespace {

using amp::Autocast;

TEST(Case10, TheErrorOfALowInputInADisabledRegionNamesBothTypesAndTheStateSurvivesIt) {
  const auto weight = torch::ones({4, 4});
  const auto bias = torch::zeros({4});
  const Autocast outer(at::kCPU, at::kBFloat16);
  const auto h = at::linear(torch::ones({2, 4}), weight, bias);
  std::string text;
  try {
    const Autocast island(at::kCPU, {}, {.enabled = false});
    at::linear(h, weight, bias);
  } catch (const c10::Error& error) {
    text = error.what();
  }
  expect_contains(text, "mat1 and mat2 must have the same dtype, but got BFloat16 and Float");
  EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCPU));
  EXPECT_EQ(at::linear(h, weight, bias).scalar_type(), at::kBFloat16);
}

TEST(Case12, NanLossOfInfiniteLogitsSkipsTheStepAndBacksOff) {
  auto scaler = ready(1024);
  const auto p = torch::tensor({{70000.0F, 0.0F}}).requires_grad_();
  const auto optimizer = sgd({p});
  at::Tensor loss;
  {
    const Autocast region(at::kCPU, at::kHalf);
    loss = torch::cross_entropy_loss(p.to(at::kHalf), torch::ones({1}, at::kLong));
  }
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  EXPECT_TRUE(std::isnan(loss.item<float>()));  // 70000 is inf in fp16
  scaler.scale(loss).backward();
  EXPECT_EQ(scaler.step(*optimizer).reason(), amp::StepOutcome::Reason::kNan);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_EQ(p.detach()[0][0].item<float>(), 70000.0F);
}

TEST(Case13, TheSameBatchInBf16IsFine) {
  torch::nn::BatchNorm1d norm(2);
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    norm(at::linear(torch::tensor({{60000.0F, 60000.0F}, {1.0F, 1.0F}}), torch::ones({2, 2})));
  }
  // 60000 rounds to 59904 in bf16: a tenth of the mean of 119808 and 2.
  EXPECT_TRUE(norm->running_mean.allclose(torch::full({2}, 5990.5F)));
  EXPECT_TRUE(norm->running_var.isfinite().all().item<bool>());
}

// A weight used through t(), as torch::nn::Linear does, and as it is.
at::Tensor use(const at::Tensor& x, const at::Tensor& weight) {
  return torch::mm(torch::mm(x, weight.t()), weight);
}

TEST(Case54, ManyForwardsKeepNoTensorAlive) {
  const auto x = torch::ones({2, 64});
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 4; ++i) {
    weights.push_back(torch::full({64, 64}, 1.0F / 64).requires_grad_(i % 2 == 0));
  }
  const auto forward = [&] {
    const Autocast region(at::kCPU, at::kBFloat16);
    at::Tensor y = x;
    for (const auto& weight : weights) {
      y = use(y, weight);
    }
  };
  for (const bool with_grad : {false, true}) {
    const torch::AutoGradMode mode(with_grad);
    forward();
    train::TensorMemoryMeter meter;
    for (int i = 0; i < 1000; ++i) {
      forward();
    }
    EXPECT_EQ(meter.current_bytes(), 0) << "with_grad " << with_grad;
  }
  // Nor does one region of many forwards hold more than the cast of each weight and of its view.
  const Autocast region(at::kCPU, at::kBFloat16);
  const torch::NoGradGuard no_grad;
  train::TensorMemoryMeter meter;
  for (int i = 0; i < 1000; ++i) {
    forward();
  }
  EXPECT_LE(meter.current_bytes(), int64_t{4} * 2 * 64 * 64 * 2);
}

TEST(Case54, AWeightChangedBetweenTwoRegionsIsSeen) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  for (const float expected : {1.0F, 5.0F}) {
    const Autocast region(at::kCPU, at::kBFloat16);
    EXPECT_EQ(torch::mm(torch::ones({1, 1}), weight).item<float>(), expected);
    EXPECT_EQ(at::linear(torch::ones({1, 1}), weight.t()).item<float>(), expected);
    weight.detach().fill_(5);
  }
}

TEST(Case96, CrossEntropyOfLowLogitsIsExactWhereLogSoftmaxRounds) {
  torch::manual_seed(0);
  const auto logits = torch::randn({64, 1000}).to(at::kBFloat16);
  const auto target = torch::randint(1000, {64});
  const double exact = torch::cross_entropy_loss(logits.to(at::kDouble), target).item<double>();
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto direct = torch::cross_entropy_loss(logits, target);
  const auto in_two = torch::nll_loss(torch::log_softmax(logits, 1), target);
  EXPECT_EQ(direct.scalar_type(), at::kFloat);
  EXPECT_EQ(in_two.scalar_type(), at::kFloat);
  // In float32 the error is that of some 1000 sums, at most 1000 * 2^-24 = 6e-5 of a value of 7.4;
  // the rounding of log-probabilities near 8 to bf16 is up to 2^-6 each, 64 of them averaged.
  EXPECT_NEAR(direct.item<double>(), exact, 7.5 * 6e-5);
  EXPECT_GT(std::abs(in_two.item<double>() - exact), 10 * std::abs(direct.item<double>() - exact));
}

}  // namespace
}  // namespace torchamp::test
