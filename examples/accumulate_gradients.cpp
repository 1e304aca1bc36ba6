// Gradient accumulation: the scale stays the same within a window, so unscale, step and update run
// once a window.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  constexpr int kMicroBatches = 4;
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  torchamp::GradScaler scaler({.init_scale = 256});
  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true);

  double last = 0.0;
  for (int window = 0; window < 50; ++window) {
    optimizer.zero_grad();
    last = 0.0;
    for (int i = 0; i < kMicroBatches; ++i) {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      const torch::Tensor part = torch::mse_loss(model->forward(input.chunk(kMicroBatches)[i]),
                                                 target.chunk(kMicroBatches)[i]);
      const torch::Tensor loss = part / kMicroBatches;  // the window's mean
      scaler.scale(loss).backward();
      last += loss.item<double>();
    }
    scaler.step(optimizer);
    scaler.update();
  }
  std::printf("loss %.4f\n", last);
  return last < 0.1 ? 0 : 1;
}
