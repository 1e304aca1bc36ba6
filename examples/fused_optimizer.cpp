// TorchAmp's AdamW in the place of LibTorch's: the scaler's step checks, unscales, clips and
// updates in one pass. Trains two copies of one model, one the classic way, and compares every bit.

#include <cstdio>
#include <vector>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                               torch::nn::Linear(64, 4));
}

torch::Tensor scaled_loss(torch::nn::Sequential& model, torchamp::GradScaler& scaler,
                          const torch::Tensor& input, const torch::Tensor& target) {
  torchamp::Autocast autocast(torch::kCPU, torch::kHalf);
  return scaler.scale(torch::cross_entropy_loss(model->forward(input), target));
}

}  // namespace

int main() {
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({256, 16});
  const torch::Tensor target = input.slice(1, 0, 4).argmax(1);
  torch::nn::Sequential model = make_model();
  torch::nn::Sequential other = make_model();

  torchamp::optim::AdamW optimizer(model->parameters(), torchamp::optim::AdamWOptions(1e-2));
  optimizer.set_max_grad_norm(1.0);
  torchamp::optim::AdamW classic(other->parameters(), torchamp::optim::AdamWOptions(1e-2));
  torchamp::GradScaler scaler, second;
  float norm = 0.0F;
  for (int step = 0; step < 40; ++step) {
    optimizer.zero_grad();
    scaled_loss(model, scaler, input, target).backward();
    scaler.step(optimizer);  // unscales, checks, clips and updates
    scaler.update();
    norm = optimizer.last_grad_norm().item<float>();

    classic.zero_grad();
    scaled_loss(other, second, input, target).backward();
    second.unscale_(classic);
    torchamp::clip_grad_norm_(other->parameters(), 1.0);
    second.step(classic);
    second.update();
  }
  bool is_same = true;
  for (size_t i = 0; i < model->parameters().size(); ++i) {
    is_same = is_same && torch::equal(model->parameters()[i], other->parameters()[i]);
  }
  std::printf(
      "last gradient norm %.3f, %lld steps applied, %s as with unscale_ and clip_grad_norm_\n",
      norm, static_cast<long long>(scaler.applied_steps()),
      is_same ? "the same weights" : "other weights");
  return is_same && scaler.applied_steps() > 30 ? 0 : 1;
}
