// With everything off, TorchAmp gives plain LibTorch's bits.

#include "amp/support.h"
#include "torchamp/torchamp.h"

namespace torchamp::test {
namespace {

std::vector<at::Tensor> train(bool with_torchamp) {
  torch::manual_seed(7);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)),
                              torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::Flatten(),
                              torch::nn::Linear(4 * 6 * 6, 10));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  GradScaler scaler({.enabled = false});
  std::vector<at::Tensor> trace;
  for (int i = 0; i < 20; ++i) {
    const auto x = torch::randn({8, 1, 8, 8});
    const auto target = torch::randint(10, {8});
    optimizer.zero_grad();
    at::Tensor loss;
    if (with_torchamp) {
      {
        const Autocast region(at::kCPU, at::kBFloat16, {.enabled = false});
        loss = torch::cross_entropy_loss(model->forward(x), target);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(optimizer);
      scaler.step(optimizer);
      scaler.update();
    } else {
      loss = torch::cross_entropy_loss(model->forward(x), target);
      loss.backward();
      optimizer.step();
    }
    trace.push_back(loss.detach().clone());
  }
  for (const auto& tensor : model->parameters()) {
    trace.push_back(tensor.detach().clone());
  }
  for (const auto& tensor : model->buffers()) {
    trace.push_back(tensor.clone());
  }
  return trace;
}

TEST(EverythingOff, GivesPlainLibTorchsBits) {
  const auto plain = train(false);
  const auto off = train(true);
  ASSERT_EQ(plain.size(), off.size());
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_TRUE(plain[i].equal(off[i])) << i;
  }
}

}  // namespace
}  // namespace torchamp::test
