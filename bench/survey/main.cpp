// survey [--threads N] [--ms N] [--only TEXT]: which ops are slower in bf16 and fp16 than in
// float32, as a Markdown table on stdout.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <malloc.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "survey/cases.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::bench {
namespace {

using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

struct Options {
  int threads = 1;
  double ms = 120;  // for each case and direction, all sides together
  std::string only;
};

constexpr double kSlower = 0.95;  // of float32's speed

struct Side {
  std::string name;
  at::ScalarType dtype;
  bool chooses;  // between LibTorch's kernel and float32
};

// One side of a case, ready to be called.
struct Work {
  Tensors leaves;
  torch::Tensor output, seed;
  const Case* each = nullptr;

  void prepare(const Case& from, at::ScalarType dtype) {
    each = &from;
    for (const torch::Tensor& input : from.inputs) {
      leaves.push_back(input.to(dtype).detach().requires_grad_());
    }
    output = forward();
    seed = torch::randn(output.sizes()).to(dtype);
  }
  torch::Tensor forward() const { return each->function(leaves); }
  void backward() const {
    torch::autograd::grad({output}, leaves, {seed}, /*retain_graph=*/true, false, true);
  }
};

// Medians of calls taken in turns, in microseconds; short ones several at a time.
std::vector<double> times(const std::vector<std::function<void()>>& calls, double budget_ms) {
  std::vector<std::vector<double>> samples(calls.size());
  std::vector<int> repeats;
  for (const auto& call : calls) {
    call();
    call();
    const auto start = Clock::now();
    call();
    repeats.push_back(std::clamp(static_cast<int>(60.0 / us_since(start)), 1, 50));
  }
  const auto start = Clock::now();
  do {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto begin = Clock::now();
      for (int k = 0; k < repeats[i]; ++k) calls[i]();
      samples[i].push_back(us_since(begin) / repeats[i]);
    }
  } while (us_since(start) < budget_ms * 1000 || samples[0].size() < 5);
  std::vector<double> medians;
  for (auto& each : samples) {
    std::nth_element(each.begin(), each.begin() + static_cast<int64_t>(each.size() / 2),
                     each.end());
    medians.push_back(each[each.size() / 2]);
  }
  return medians;
}

std::string cell(double ratio) {
  char text[32];
  std::snprintf(text, sizeof(text), ratio < kSlower ? "**%.2f**" : "%.2f", ratio);
  return text;
}

struct Tally {
  int cases = 0;
  std::vector<int> slower;
};

void survey(const Options& options) {
  const std::vector<Side> sides = {{"fp32", at::kFloat, false},
                                   {"bf16, LibTorch's", at::kBFloat16, false},
                                   {"bf16, chosen", at::kBFloat16, true},
                                   {"fp16", at::kHalf, true}};
  std::map<std::string, Tally> tallies;
  std::vector<std::string> order;
  std::printf("| case | direction | fp32 us | bf16, LibTorch's | bf16, chosen | fp16 |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Case& each : survey_cases()) {
    const std::string name = each.group + ": " + each.name;
    if (name.find(options.only) == std::string::npos) continue;
    std::vector<Work> work(sides.size());
    for (size_t i = 0; i < sides.size(); ++i) work[i].prepare(each, sides[i].dtype);
    for (const bool backward : {false, true}) {
      std::vector<std::function<void()>> calls;
      for (size_t i = 0; i < sides.size(); ++i) {
        calls.push_back([&side = work[i], chooses = sides[i].chooses, backward] {
          ops::set_choosing(chooses);
          if (backward) {
            side.backward();
          } else {
            side.forward();
          }
        });
      }
      const std::vector<double> us = times(calls, options.ms);
      const std::string key = each.group + (backward ? ", backward" : ", forward");
      if (!tallies.contains(key)) {
        order.push_back(key);
        tallies[key].slower.resize(sides.size());
      }
      Tally& tally = tallies[key];
      ++tally.cases;
      std::printf("| %s | %s | %.1f |", name.c_str(), backward ? "backward" : "forward", us[0]);
      for (size_t i = 1; i < sides.size(); ++i) {
        std::printf(" %s |", cell(us[0] / us[i]).c_str());
        tally.slower[i] += us[0] / us[i] < kSlower;
      }
      std::printf("\n");
    }
  }
  std::printf(
      "\n| group | cases | bf16 slower, LibTorch's | bf16 slower, chosen | fp16 slower |\n");
  std::printf("|---|---|---|---|---|\n");
  for (const std::string& key : order) {
    std::printf("| %s | %d |", key.c_str(), tallies[key].cases);
    for (size_t i = 1; i < sides.size(); ++i) std::printf(" %d |", tallies[key].slower[i]);
    std::printf("\n");
  }
  const ops::ChoiceCount count = ops::count_choices();
  std::printf(
      "\n%lld choices: %lld for float32, %lld for channels_last, %lld for float32 in "
      "channels_last.\n",
      static_cast<long long>(count.all), static_cast<long long>(count.float32),
      static_cast<long long>(count.channels_last),
      static_cast<long long>(count.float32_channels_last));
}

}  // namespace
}  // namespace torchamp::bench

int main(int argc, char** argv) {
  // Else glibc gives the end of its heap back after one side's calls, and the next side waits for
  // its pages: the same kernel took 0.9 ms as one side and 0.35 ms as another.
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  torchamp::bench::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--threads") options.threads = std::atoi(argv[i + 1]);
    if (flag == "--ms") options.ms = std::atof(argv[i + 1]);
    if (flag == "--only") options.only = argv[i + 1];
  }
  torch::set_num_threads(options.threads);
  torchamp::ops::install();
  torchamp::bench::survey(options);
}
