// A LibTorch training program; the five marked lines are all that mixed precision adds.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>  // (1)

int main() {
  torch::manual_seed(0);
  const torch::Device device(torch::kCPU);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 4));
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const torch::Tensor input = torch::randn({256, 16}, device);
  const torch::Tensor target = input.slice(1, 0, 4).argmax(1);

  torchamp::GradScaler scaler;  // (2)
  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(device, torch::kHalf);  // (3)
      loss = torch::cross_entropy_loss(model->forward(input), target);
    }
    scaler.scale(loss).backward();  // (4) was: loss.backward()
    scaler.step(optimizer);         // (5) was: optimizer.step()
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f -> %.3f, scale %.0f\n", first, last, scaler.get_scale());
  return last < 0.5 * first ? 0 : 1;
}
