// What linking TorchAmp costs a program in which everything is off: the same training step with and
// without a disabled Autocast and a disabled GradScaler, step by step in turn, and the ratio of the
// times. On a busy machine trust the ratio of the minima.
//
//   off_overhead [seconds a workload]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/Version.h>
#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace {

struct Workload {
  std::string name;
  int64_t width;
  int64_t batch;
};

struct Training {
  explicit Training(const Workload& work)
      : model(torch::nn::Linear(work.width, work.width), torch::nn::ReLU(),
              torch::nn::Linear(work.width, 10)),
        optimizer(model->parameters(), torch::optim::SGDOptions(1e-3)),
        x(torch::randn({work.batch, work.width})),
        target(torch::randint(10, {work.batch})) {}

  void plain() {
    optimizer.zero_grad();
    torch::cross_entropy_loss(model->forward(x), target).backward();
    optimizer.step();
  }

  void off() {
    optimizer.zero_grad();
    torch::Tensor loss;
    {
      const torchamp::Autocast region(torch::kCPU, torch::kBFloat16, {.enabled = false});
      loss = torch::cross_entropy_loss(model->forward(x), target);
    }
    scaler.scale(loss).backward();
    scaler.step(optimizer);
    scaler.update();
  }

  torch::nn::Sequential model;
  torch::optim::SGD optimizer;
  torchamp::GradScaler scaler{{.enabled = false}};
  torch::Tensor x;
  torch::Tensor target;
};

template <typename F>
double microseconds(F&& step) {
  const auto start = std::chrono::steady_clock::now();
  step();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
      .count();
}

double quantile(std::vector<double>& values, double share) {
  const auto place = values.begin() + static_cast<int64_t>(share * (values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

bool same_bits(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.equal(y); });
}

void compare(const Workload& work, double seconds) {
  torch::manual_seed(1);
  Training plain(work);
  torch::manual_seed(1);
  Training off(work);
  std::vector<double> plain_us;
  std::vector<double> off_us;
  for (double total_us = 0; total_us < seconds * 1e6 || plain_us.size() < 20;) {
    const bool plain_first = plain_us.size() % 2 == 0;  // neither is always the first
    if (plain_first) {
      plain_us.push_back(microseconds([&] { plain.plain(); }));
    }
    off_us.push_back(microseconds([&] { off.off(); }));
    if (!plain_first) {
      plain_us.push_back(microseconds([&] { plain.plain(); }));
    }
    total_us += plain_us.back() + off_us.back();
  }
  std::printf("%-20s %6zu steps, us min/median/p90: plain %.1f/%.1f/%.1f off %.1f/%.1f/%.1f",
              work.name.c_str(), off_us.size(), quantile(plain_us, 0), quantile(plain_us, 0.5),
              quantile(plain_us, 0.9), quantile(off_us, 0), quantile(off_us, 0.5),
              quantile(off_us, 0.9));
  std::printf("  ratio min %.4f median %.4f, bits %s\n",
              quantile(off_us, 0) / quantile(plain_us, 0),
              quantile(off_us, 0.5) / quantile(plain_us, 0.5),
              same_bits(plain.model->parameters(), off.model->parameters()) ? "equal" : "DIFFER");
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::max(0.1, std::atof(argv[1])) : 3.0;
  std::printf("LibTorch %s, %d threads, %s\n", TORCH_VERSION, at::get_num_threads(),
              at::get_cpu_capability().c_str());
  compare({"mlp 8, batch 2", 8, 2}, seconds);  // nothing but overhead
  compare({"mlp 256, batch 64", 256, 64}, seconds);
  compare({"mlp 1024, batch 128", 1024, 128}, seconds);
  return 0;
}
