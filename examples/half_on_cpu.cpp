// float16 training on a CPU without fp16 arithmetic: one call makes LibTorch's layers compute in
// float32 and store float16.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torchamp::ops::install();
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 16, 3).padding(1)),
                              torch::nn::ReLU(), torch::nn::AdaptiveAvgPool2d(4),
                              torch::nn::Flatten(), torch::nn::Linear(16 * 4 * 4, 10));
  torchamp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  torchamp::GradScaler scaler;
  const torch::Tensor images = torch::randn({64, 1, 28, 28});
  const torch::Tensor labels = torch::randint(10, {64});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    torch::Tensor loss;
    {
      const torchamp::Autocast autocast(torch::kCPU, torch::kHalf);
      loss = torch::cross_entropy_loss(model->forward(images), labels);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    optimizer.zero_grad();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f, after 30 steps in float16 %.3f\n", first, last);
  return last < first ? 0 : 1;
}
