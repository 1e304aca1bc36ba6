// Autocast is a property of the thread; this carries it into a thread of one's own.

#include <cstdio>
#include <thread>

#include <torch/torch.h>

#include <torchamp/torchamp.h>

int main() {
  const torch::Tensor a = torch::ones({4, 4});
  torch::ScalarType plain{};
  torch::ScalarType carried{};
  {
    torchamp::Autocast autocast(torch::kCPU, torch::kBFloat16);
    const auto state = torchamp::amp::AutocastState::capture();
    std::thread([&] { plain = torch::mm(a, a).scalar_type(); }).join();
    std::thread([&] {
      torchamp::amp::AutocastStateGuard guard(state);
      carried = torch::mm(a, a).scalar_type();
    }).join();
  }
  std::printf("a new thread computes in %s, with the state carried over in %s\n",
              torch::toString(plain), torch::toString(carried));
  return plain == torch::kFloat && carried == torch::kBFloat16 ? 0 : 1;
}
