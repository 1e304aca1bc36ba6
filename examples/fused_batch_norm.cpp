// A residual block with batch norm, shortcut and relu as one layer: fewer passes over memory than
// separate layers, and a state_dict that fits torch::nn::BatchNorm2d.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/nn/batch_norm_relu.h>
#include <torchamp/torchamp.h>

namespace {

torch::nn::Conv2d conv3x3(int64_t in, int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t channels)
      : conv1(register_module("conv1", conv3x3(channels, channels))),
        bn1(register_module("bn1", torchamp::nn::BatchNormReLU2d(channels))),
        conv2(register_module("conv2", conv3x3(channels, channels))),
        bn2(register_module("bn2", torchamp::nn::BatchNormReLU2d(channels))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return bn2->forward(conv2->forward(bn1->forward(conv1->forward(x))), x);  // relu(bn2(..) + x)
  }

  torch::nn::Conv2d conv1;
  torchamp::nn::BatchNormReLU2d bn1;
  torch::nn::Conv2d conv2;
  torchamp::nn::BatchNormReLU2d bn2;
};
TORCH_MODULE(Block);

}  // namespace

int main() {
  torchamp::ops::install();  // the pooling, too
  torch::manual_seed(0);
  torch::nn::Sequential model(conv3x3(1, 16), torchamp::nn::BatchNormReLU2d(16), Block(16),
                              torch::nn::AdaptiveAvgPool2d(4), torch::nn::Flatten(),
                              torch::nn::Linear(16 * 4 * 4, 10));
  torchamp::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  const torch::Tensor images =
      torch::randn({32, 1, 16, 16}).contiguous(torch::MemoryFormat::ChannelsLast);
  const torch::Tensor labels = torch::randint(10, {32});
  double first = 0, last = 0;
  for (int step = 0; step < 30; ++step) {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = torch::cross_entropy_loss(model->forward(images), labels);
    }
    loss.backward();
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.3f, after 30 steps %.3f\n", first, last);
  return last < first ? 0 : 1;
}
