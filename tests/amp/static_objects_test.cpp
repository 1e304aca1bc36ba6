// Objects in static storage, made before main and destroyed after it, in two places of which one
// uses the other. The program's exit code is the test; CTest sees it.

#include <torch/torch.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"

namespace torchamp::test {

amp::GradScaler& static_scaler();

namespace {

const amp::Autocast static_region(at::kCPU, at::kBFloat16);
const at::Tensor static_loss = static_scaler().scale(torch::ones({}));

struct LastUse {
  ~LastUse() {
    const amp::Autocast region(at::kCPU, at::kHalf);
    static_scaler().scale(torch::ones({}));
  }
} last_use;

}  // namespace
}  // namespace torchamp::test

int main() {
  const auto scaled = torchamp::test::static_scaler().scale(torch::ones({}));
  return scaled.item<float>() == 65536.0F ? 0 : 1;
}
