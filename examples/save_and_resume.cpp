// A checkpoint that Python's torch.load(weights_only=True) reads, and a run that goes on from it
// bit for bit.

#include <cstdio>
#include <filesystem>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

namespace {

struct Run {
  torch::nn::Linear model{4, 1};
  torch::optim::AdamW optimizer{model->parameters(), torch::optim::AdamWOptions(1e-2)};
  torchamp::GradScaler scaler{{.init_scale = 8, .growth_interval = 3}};

  double step(const torch::Tensor& input) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = torch::mse_loss(model->forward(input), input.sum(1, true));
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
    return loss.item<double>();
  }

  void save(const std::filesystem::path& file) {
    torchamp::base::StateDict state;
    state.set("model_state_dict", torchamp::train::module_state_dict(*model));
    state.set("optimizer_state_dict", torchamp::optim::optimizer_state_dict(optimizer));
    state.set("scaler_state_dict", scaler.state_dict());
    torchamp::checkpoint::save(file, state);
  }

  void load(const std::filesystem::path& file) {
    const auto state = torchamp::checkpoint::load(file);
    torchamp::train::load_module_state_dict(*model, state.at("model_state_dict").to_dict());
    torchamp::optim::load_optimizer_state_dict(optimizer,
                                               state.at("optimizer_state_dict").to_dict());
    scaler.load_state_dict(state.at("scaler_state_dict").to_dict());
  }
};

}  // namespace

int main() {
  torch::manual_seed(0);
  const torch::Tensor input = torch::randn({32, 4});
  const auto file = std::filesystem::temp_directory_path() / "torchamp_save_and_resume.pt";

  Run first;
  for (int i = 0; i < 5; ++i) first.step(input);
  first.save(file);

  Run second;  // another random start, replaced by what the file holds
  second.load(file);
  std::filesystem::remove(file);
  double a = 0.0;
  double b = 0.0;
  for (int i = 0; i < 5; ++i) {
    a = first.step(input);
    b = second.step(input);
  }
  std::printf("uninterrupted %.9g, resumed %.9g\n", a, b);
  return a == b && first.scaler.get_scale() == second.scaler.get_scale() ? 0 : 1;
}
