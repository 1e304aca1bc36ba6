// BufferSnapshot: BatchNorm's statistics after a skipped step.

#include "torchamp/amp/buffer_guard.h"

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

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
