// Activation checkpointing: each block's activations are dropped after forward and computed again
// in backward, in the same region and with the same dropout.

#include <cstdio>
#include <vector>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

using Blocks = std::vector<torch::nn::Sequential>;

torch::Tensor forward(const Blocks& blocks, torch::Tensor x, bool checkpoint) {
  for (const auto& block : blocks) {
    auto run = [block = block](const torch::Tensor& in) mutable { return block->forward(in); };
    x = checkpoint ? torchamp::amp::activation_checkpoint(run, x) : run(x);
  }
  return x;
}

int main() {
  Blocks blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.emplace_back(torch::nn::Linear(32, 64), torch::nn::ReLU(), torch::nn::Dropout(0.2),
                        torch::nn::Linear(64, 32));
  }
  const torch::Tensor input = torch::randn({16, 32});
  std::vector<torch::Tensor> gradients;
  for (const bool checkpoint : {false, true}) {
    torch::manual_seed(0);
    const auto weight = blocks[0][0]->as<torch::nn::Linear>()->weight;
    weight.mutable_grad() = torch::Tensor();
    torchamp::GradScaler scaler({.init_scale = 1024});
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = forward(blocks, input, checkpoint).to(torch::kFloat).pow(2).mean();
    }
    scaler.scale(loss).backward();
    gradients.push_back(weight.grad().clone());
  }
  const bool same = torch::equal(gradients[0], gradients[1]);
  std::printf("gradients with and without checkpoints are %s\n", same ? "equal" : "different");
  return same ? 0 : 1;
}
