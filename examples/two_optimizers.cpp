// Two networks, two optimizers, one scaler: an overflow in one skips only that one's step; update()
// runs once.

#include <cstdio>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  torch::manual_seed(0);
  torch::nn::Linear encoder(8, 3);
  torch::nn::Linear decoder(3, 8);
  torch::optim::AdamW encoder_optimizer(encoder->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW decoder_optimizer(decoder->parameters(), torch::optim::AdamWOptions(2e-2));
  torchamp::GradScaler scaler;
  const torch::Tensor input = torch::randn({128, 3}).matmul(torch::randn({3, 8}));

  double first = 0.0;
  double last = 0.0;
  for (int step = 0; step < 200; ++step) {
    encoder_optimizer.zero_grad();
    decoder_optimizer.zero_grad();
    torch::Tensor loss;
    {
      torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
      loss = torch::mse_loss(decoder->forward(encoder->forward(input)), input);
    }
    scaler.scale(loss).backward();
    scaler.step(encoder_optimizer);
    scaler.step(decoder_optimizer);
    scaler.update();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  return last < 0.2 * first ? 0 : 1;
}
