// A library that uses TorchAmp and is opened and closed by plugin_host.cpp while the program runs.

#include <torch/torch.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"

namespace {
torchamp::amp::GradScaler scaler;  // holds tensors when the library is closed
}  // namespace

extern "C" __attribute__((visibility("default"))) int torchamp_test_plugin_run() {
  const torchamp::amp::Autocast region(at::kCPU, at::kBFloat16);
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const auto loss = torch::mm(torch::ones({1, 1}), weight);
  scaler.scale(loss.to(at::kFloat)).sum().backward();
  const bool is_right = loss.scalar_type() == at::kBFloat16 && weight.grad().item<float>() == 65536;
  return is_right ? 0 : 1;
}
