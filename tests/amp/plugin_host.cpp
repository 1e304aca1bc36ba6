// Opens and closes a library that uses TorchAmp, and goes on: plugin_host LIBRARY. The exit code is
// the test.

#include <cstdio>

#include <dlfcn.h>

#include <torch/torch.h>

int main(int argc, char** argv) {
  for (int round = 0; round < 2; ++round) {
    void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      return 2;
    }
    const auto run = reinterpret_cast<int (*)()>(dlsym(library, "torchamp_test_plugin_run"));
    if (run == nullptr || run() != 0 || dlclose(library) != 0) {
      return 1;
    }
    const auto weight = torch::ones({2, 2}).requires_grad_();
    const auto y = torch::mm(torch::ones({2, 2}), weight);
    y.sum().backward();
    if (y.scalar_type() != at::kFloat || weight.grad()[0][0].item<float>() != 2) {
      return 1;
    }
  }
  return 0;
}
