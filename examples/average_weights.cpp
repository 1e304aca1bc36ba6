// An average of the weights to validate with, and a learning rate that waits while the scaler
// searches for its scale: both follow applied steps only.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 1));
  torchamp::optim::AdamW optimizer(model->parameters(), torchamp::optim::AdamWOptions(0.05));
  torchamp::optim::WarmupCosine warmup(optimizer, {.warmup_steps = 20});
  torchamp::optim::FollowAppliedSteps schedule(warmup);
  torchamp::optim::Ema average(*model, {.decay = 0.95});
  torchamp::GradScaler scaler({.init_scale = 0x1p30});  // too large: the first steps overflow

  const auto loss_of = [&](const torch::Tensor& input, double noise) {
    torchamp::Autocast autocast(torch::kCPU, torch::kHalf);
    const torch::Tensor target = input.sum(1, /*keepdim=*/true);
    return torch::mse_loss(model->forward(input), target + noise * torch::randn_like(target));
  };
  int skipped = 0;  // the noise of the targets moves the last weights about, the average less
  for (int step = 0; step < 400; ++step) {
    optimizer.zero_grad();
    scaler.scale(loss_of(torch::randn({16, 8}), 1.0)).backward();
    const auto outcome = scaler.step(optimizer);
    average.update(outcome);
    schedule.step(outcome);
    scaler.update();
    skipped += outcome.skipped() ? 1 : 0;
  }

  const torch::Tensor held_out = torch::randn({1024, 8});
  torch::NoGradGuard no_grad;
  const auto last = loss_of(held_out, 0.0).item<double>();
  double averaged = 0.0;
  {
    const torchamp::optim::EmaWeights weights(average);  // in the model until the brace
    averaged = loss_of(held_out, 0.0).item<double>();
  }
  std::printf("%d steps skipped; loss of the last weights %.4f, of the average %.4f\n", skipped,
              last, averaged);
  const bool is_back = loss_of(held_out, 0.0).item<double>() == last;
  return skipped > 0 && is_back && warmup.last_step() == 400 - skipped &&
                 average.n_averaged() == 400 - skipped
             ? 0
             : 1;
}
