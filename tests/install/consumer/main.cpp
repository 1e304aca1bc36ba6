// One training step with the installed TorchAmp: the scale doubles after growth_interval applied
// steps.
#include <iostream>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(1);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  torchamp::GradScaler scaler({.init_scale = 8.0, .growth_interval = 1});
  torch::Tensor loss;
  at::ScalarType seen{};
  {
    torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
    const torch::Tensor output = model->forward(torch::ones({3, 4}));
    seen = output.scalar_type();
    loss = output.to(torch::kFloat).square().mean();
  }
  scaler.scale(loss).backward();
  const bool applied = scaler.step(optimizer).applied();
  scaler.update();
  std::cout << "TorchAmp " << TORCHAMP_VERSION << " applied " << applied << " dtype " << seen
            << " scale " << scaler.get_scale() << '\n';
  return applied && seen == torch::kBFloat16 && scaler.get_scale() == 16.0 ? 0 : 1;
}
