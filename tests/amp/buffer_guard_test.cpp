// BufferGuard and BufferSnapshot: BatchNorm's statistics after a skipped step.

#include "torchamp/amp/buffer_guard.h"

#include <cmath>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;

struct NormedNet : torch::nn::Module {
  NormedNet() {
    register_module("linear", linear);
    register_module("norm", norm);
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(1);
  }
  at::Tensor forward(const at::Tensor& x) { return norm(at::linear(x, linear->weight)); }
  torch::nn::Linear linear{torch::nn::LinearOptions(2, 2).bias(false)};
  torch::nn::BatchNorm1d norm{2};
};

TEST(BufferSnapshot, KeepsBatchNormFiniteAfterASkippedStep) {
  auto scaler = amp::GradScaler({.init_scale = 1024});
  NormedNet net;
  const auto optimizer = sgd(net.parameters());
  amp::BufferSnapshot buffers(net.buffers());
  at::Tensor y;
  {
    const amp::Autocast region(at::kCPU, at::kHalf);
    y = net.forward(torch::tensor({{60000.0F, 60000.0F}, {1.0F, 1.0F}}));  // 120000 is inf in fp16
  }
  scaler.scale(y.sum()).backward();
  EXPECT_FALSE(net.norm->running_mean.isfinite().all().item<bool>());
  const auto outcome = scaler.step(*optimizer);
  scaler.update();
  ASSERT_TRUE(outcome.skipped());
  buffers.restore();
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_TRUE(net.linear->weight.eq(1).all().item<bool>());
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 0);
  net.eval();
  EXPECT_TRUE(net.forward(torch::ones({1, 2})).isfinite().all().item<bool>());
}

// One iteration of case 13, with or without an overflow in fp16 (60000 + 60000 is inf).
amp::StepOutcome iterate(NormedNet& net, torch::optim::Optimizer& optimizer, GradScaler& scaler,
                         float large) {
  amp::BufferGuard buffers(net.buffers());
  optimizer.zero_grad();
  at::Tensor y;
  {
    const amp::Autocast region(at::kCPU, at::kHalf);
    y = net.forward(torch::tensor({{large, large}, {1.0F, 1.0F}}));
  }
  scaler.scale(y.sum()).backward();
  const auto outcome = buffers.follow(scaler.step(optimizer));
  scaler.update();
  return outcome;
}

TEST(BufferGuard, PutsTheBuffersBackAfterASkippedStepAlone) {
  GradScaler scaler({.init_scale = 1024});
  NormedNet net;
  const auto optimizer = sgd(net.parameters(), 0.0);
  EXPECT_TRUE(iterate(net, *optimizer, scaler, 3.0F).applied());
  // The first batch gives 6 and 2: mean 4, variance 8 (unbiased); momentum 0.1.
  const auto mean = net.norm->running_mean.clone();
  const auto variance = net.norm->running_var.clone();
  EXPECT_TRUE(torch::allclose(mean, torch::full({2}, 0.4F)));
  EXPECT_TRUE(torch::allclose(variance, torch::full({2}, 0.9F + 0.8F)));
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 1);

  const auto skipped = iterate(net, *optimizer, scaler, 60000.0F);
  EXPECT_TRUE(skipped.skipped());
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_TRUE(net.norm->running_mean.equal(mean));
  EXPECT_TRUE(net.norm->running_var.equal(variance));
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 1);
  net.eval();
  // (2 - 0.4) / sqrt(1.7 + 1e-5), the affine part being 1 and 0.
  const auto y = net.forward(torch::ones({1, 2}));
  EXPECT_TRUE(torch::allclose(y, torch::full({1, 2}, 1.6F / std::sqrt(1.70001F)))) << y;

  net.train();
  EXPECT_TRUE(iterate(net, *optimizer, scaler, 3.0F).applied());
  EXPECT_EQ(net.norm->num_batches_tracked.item<int64_t>(), 2);
}

TEST(BufferGuard, FollowsSeveralOptimizersAndDoesNothingUnasked) {
  const auto buffer = torch::ones({2});
  {
    amp::BufferGuard guard({buffer});
    buffer.fill_(2);
  }
  EXPECT_TRUE(buffer.eq(2).all().item<bool>());
  for (const bool first : {true, false}) {
    buffer.fill_(1);
    amp::BufferGuard guard({buffer});
    buffer.fill_(2);
    guard.follow(amp::StepOutcome::make_pending(torch::full({}, first ? 1.0F : 0.0F)));
    guard.follow(amp::StepOutcome::make_pending(torch::full({}, first ? 0.0F : 1.0F)));
    EXPECT_TRUE(buffer.eq(1).all().item<bool>());
  }
}

TEST(BufferSnapshot, TakesAnewAndLeavesOutUndefinedOnes) {
  const auto buffer = torch::ones({2});
  amp::BufferSnapshot snapshot({buffer, at::Tensor()});
  buffer.fill_(2);
  snapshot.take();
  buffer.fill_(3);
  snapshot.restore();
  EXPECT_TRUE(buffer.eq(2).all().item<bool>());
}

}  // namespace
}  // namespace torchamp::test
