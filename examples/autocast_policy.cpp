// Which op runs in which type is a value that can be changed: softmax in float32, mm left alone,
// and a part of the model in float32.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  using torchamp::amp::AutocastPolicy;
  torch::nn::Sequential model(torch::nn::Linear(8, 8), torch::nn::ReLU(), torch::nn::Linear(8, 4));

  const auto policy = AutocastPolicy::libtorch(torch::kCPU)
                          .fp32("softmax")             // an op, all of its overloads
                          .deny("mm")                  // not cast, whatever LibTorch lists
                          .fp32_modules(*model, "2");  // a submodule, by path or pattern
  const auto x = torch::ones({2, 8});
  torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16, {.policy = policy});
  const auto hidden = model[0]->as<torch::nn::Linear>()->forward(x);
  const auto logits = model->forward(x);
  const auto probabilities = torch::softmax(hidden, 1);
  const auto product = torch::mm(x, x.t());
  std::printf("first layer %s, last layer %s, softmax %s, mm %s\n",
              torch::toString(hidden.scalar_type()), torch::toString(logits.scalar_type()),
              torch::toString(probabilities.scalar_type()), torch::toString(product.scalar_type()));
  return hidden.scalar_type() == torch::kBFloat16 && logits.scalar_type() == torch::kFloat &&
                 probabilities.scalar_type() == torch::kFloat &&
                 product.scalar_type() == torch::kFloat
             ? 0
             : 1;
}
