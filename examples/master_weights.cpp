// Trains a small network twice from the same start: float32 weights under Autocast, and bfloat16
// weights with a master. Losses and weights are the same, bit for bit.

#include <cstdio>
#include <vector>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

namespace {

torch::nn::Sequential make_model() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(16, 64),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({64})),
                               torch::nn::ReLU(), torch::nn::Linear(64, 4));
}

std::vector<double> train(torch::nn::Sequential& model) {
  torchamp::optim::AdamW optimizer(model->parameters(), torchamp::optim::AdamWOptions(1e-2),
                                   {.max_grad_norm = 1.0});
  torch::manual_seed(1);
  const torch::Tensor input = torch::randn({256, 16});
  const torch::Tensor target = input.slice(1, 0, 4).argmax(1);
  std::vector<double> losses;
  for (int step = 0; step < 60; ++step) {
    optimizer.zero_grad();
    for (const auto& rows : torch::arange(256).chunk(2)) {  // two passes a step
      torch::Tensor loss;
      {
        torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
        loss = torch::cross_entropy_loss(model->forward(input.index_select(0, rows)),
                                         target.index_select(0, rows));
      }
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    optimizer.step();
  }
  return losses;
}

}  // namespace

int main() {
  torch::nn::Sequential plain = make_model();
  torch::nn::Sequential converted = make_model();
  const auto names = torchamp::to_low_precision(*converted, torch::kBFloat16);
  for (const auto& name : names) std::printf("%s is bfloat16\n", name.c_str());

  const std::vector<double> losses = train(converted);
  bool is_same = losses == train(plain);
  const auto exact = torchamp::optim::full_state_dict(*converted);
  const auto expected = torchamp::optim::full_state_dict(*plain);
  for (const auto& entry : expected.entries()) {
    is_same = is_same && torch::equal(exact.at(entry.key).to_tensor(), entry.value.to_tensor());
  }
  std::printf("loss %.3f -> %.3f, %s as with float32 weights\n", losses.front(), losses.back(),
              is_same ? "the same bits" : "not the same");
  return is_same && names.size() == 2 && losses.back() < 0.5 * losses.front() ? 0 : 1;
}
