// A gradient penalty: the norm of the loss's own gradient is part of the loss. The gradient comes
// out scaled, so it is unscaled by hand before it is used.

#include <cstdio>
#include <vector>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 1));
  const auto parameters = model->parameters();
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.05));
  torchamp::GradScaler scaler({.init_scale = 1024});
  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true).tanh();

  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = torch::mse_loss(model->forward(input), target);
    }
    // The gradients of the scaled loss, with a graph of their own.
    const auto scaled_gradients = torch::autograd::grad(
        {scaler.scale(loss)}, parameters, {}, /*retain_graph=*/true, /*create_graph=*/true);
    const double inv_scale = 1.0 / scaler.get_scale();

    torch::Tensor total;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      torch::Tensor square = torch::zeros({});
      for (const auto& scaled : scaled_gradients) {
        square = square + (scaled * inv_scale).pow(2).sum();
      }
      total = loss + 0.01 * square.sqrt();
    }
    scaler.scale(total).backward();
    scaler.step(optimizer);
    scaler.update();
    last = total.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss with penalty %.4f -> %.4f\n", first, last);
  return last < 0.3 * first ? 0 : 1;
}
