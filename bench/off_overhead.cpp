// What linking TorchAmp costs a program in which everything is off: the same training step with and
// without a disabled Autocast and a disabled GradScaler, interleaved, and the ratio of the times.
//
//   off_overhead [rounds]

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace {

struct Workload {
  std::string name;
  int64_t width;
  int64_t batch;
  int steps;  // of one round
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
double microseconds_a_step(int steps, F&& step) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < steps; ++i) {
    step();
  }
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - start;
  return elapsed.count() / steps;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const Workload& work, int rounds) {
  torch::manual_seed(1);
  Training plain(work);
  torch::manual_seed(1);
  Training off(work);
  std::vector<double> plain_us;
  std::vector<double> off_us;
  std::vector<double> ratios;
  for (int round = -2; round < rounds; ++round) {  // two rounds to warm up
    double a = 0;
    double b = 0;
    const auto run_plain = [&] { a = microseconds_a_step(work.steps, [&] { plain.plain(); }); };
    const auto run_off = [&] { b = microseconds_a_step(work.steps, [&] { off.off(); }); };
    if (round % 2 == 0) {  // neither is always the first
      run_plain();
      run_off();
    } else {
      run_off();
      run_plain();
    }
    if (round >= 0) {
      plain_us.push_back(a);
      off_us.push_back(b);
      ratios.push_back(b / a);
    }
  }
  const auto p = plain.model->parameters();
  const auto q = off.model->parameters();
  bool same = true;
  for (size_t i = 0; i < p.size(); ++i) {
    same = same && p[i].equal(q[i]);
  }
  std::printf("%-22s plain %9.2f us  off %9.2f us  ratio median %.4f min %.4f max %.4f  bits %s\n",
              work.name.c_str(), median(plain_us), median(off_us), median(ratios),
              *std::min_element(ratios.begin(), ratios.end()),
              *std::max_element(ratios.begin(), ratios.end()), same ? "equal" : "DIFFER");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 31;
  std::printf("threads %d, %d rounds, medians of a step\n", at::get_num_threads(), rounds);
  compare({"mlp 8, batch 2", 8, 2, 200}, rounds);  // nothing but overhead
  compare({"mlp 256, batch 64", 256, 64, 50}, rounds);
  compare({"mlp 1024, batch 128", 1024, 128, 4}, rounds);
  return 0;
}
