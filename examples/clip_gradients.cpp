// Clipping: unscale first, so that the threshold is in units of the true gradient.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Linear model(8, 1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torchamp::GradScaler scaler({.init_scale = 1024});
  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true);

  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = torch::mse_loss(model->forward(input), target);
    }
    scaler.scale(loss).backward();
    scaler.unscale_(optimizer);
    const torch::Tensor norm = torchamp::clip_grad_norm_(model->parameters(), 1.0);
    const auto outcome = scaler.step(optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
    if (step % 25 == 0) {
      std::printf("step %d: loss %.4f, gradient norm %.3f, %s\n", step, last, norm.item<double>(),
                  outcome.applied() ? "applied" : "skipped");
    }
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < 0.1 * first ? 0 : 1;
}
