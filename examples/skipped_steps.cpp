// Steps that the scaler skips: BatchNorm's statistics are put back, and the scaler tells what
// happened.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16),
                              torch::nn::Linear(16, 1));
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
  torchamp::GradScaler scaler({.init_scale = 0x1p30});  // too large: the first steps overflow

  const torch::Tensor input = torch::randn({64, 8});
  const torch::Tensor target = input.sum(1, /*keepdim=*/true);
  for (int step = 0; step < 40; ++step) {
    torchamp::amp::BufferGuard buffers(model->buffers());
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kHalf);
      loss = torch::mse_loss(model->forward(input), target);
    }
    scaler.scale(loss).backward();
    buffers.follow(scaler.step(optimizer));
    scaler.update();
  }
  for (const auto& skip : scaler.last_skips()) {
    std::printf("iteration %ld skipped: %s at scale %g\n", static_cast<long>(skip.iteration),
                torchamp::amp::to_string(skip.reason), skip.scale);
  }
  const auto health = scaler.health();
  std::printf("%s\n", health.to_string().c_str());

  // One batch for each applied step, none for the skipped ones.
  const auto& norm = model[1]->as<torch::nn::BatchNorm1d>()->num_batches_tracked;
  return !health.is_stalled() && health.skipped_steps > 0 &&
                 norm.item<int64_t>() == health.applied_steps
             ? 0
             : 1;
}
