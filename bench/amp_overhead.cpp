// What the parts of TorchAmp cost beside LibTorch's own functions: a region, an op's kernel under a
// policy, and the scaler's calls. Each "LibTorch" is what a program would write without TorchAmp.
//
//   amp_overhead --benchmark_enable_random_interleaving=true --benchmark_repetitions=9

#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace {

using torchamp::amp::AutocastPolicy;

void region_libtorch(benchmark::State& state) {
  for (auto _ : state) {
    const bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
    const auto dtype = at::autocast::get_autocast_dtype(at::kCPU);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, dtype);
  }
}
BENCHMARK(region_libtorch);

void region_torchamp(benchmark::State& state) {
  for (auto _ : state) {
    const torchamp::Autocast region(at::kCPU, at::kBFloat16);
  }
}
BENCHMARK(region_torchamp);

// A listed op on bf16 tensors, so that nothing is cast and the kernel's own cost is left.
void mm(benchmark::State& state, const AutocastPolicy& policy) {
  const torch::NoGradGuard no_grad;
  const auto a = torch::ones({2, 2}, at::kBFloat16);
  const torchamp::Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::mm(a, a));
  }
}
BENCHMARK_CAPTURE(mm, libtorch, AutocastPolicy::none());
BENCHMARK_CAPTURE(mm, torchamp, AutocastPolicy::libtorch(at::kCPU));

// A weight whose cast is kept, with history.
void linear(benchmark::State& state, const AutocastPolicy& policy) {
  const auto x = torch::ones({2, 2}, at::kBFloat16);
  const auto weight = torch::ones({2, 2}).requires_grad_();
  const auto bias = torch::ones({2}).requires_grad_();
  const torchamp::Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::linear(x, weight, bias));
  }
}
BENCHMARK_CAPTURE(linear, libtorch, AutocastPolicy::none());
BENCHMARK_CAPTURE(linear, torchamp, AutocastPolicy::libtorch(at::kCPU));

// An op that LibTorch does not list, without and with a rule of the user's that casts nothing here.
void softmax(benchmark::State& state, const AutocastPolicy& policy) {
  const torch::NoGradGuard no_grad;
  const auto x = torch::ones({2, 2});
  const torchamp::Autocast region(at::kCPU, at::kBFloat16, {.policy = policy});
  for (auto _ : state) {
    benchmark::DoNotOptimize(at::softmax(x, 1));
  }
}
BENCHMARK_CAPTURE(softmax, libtorch, AutocastPolicy::none());
BENCHMARK_CAPTURE(softmax, torchamp_fp32, AutocastPolicy::libtorch(at::kCPU).fp32("softmax.int"));

struct Step {
  explicit Step(int64_t tensors) {
    for (int64_t i = 0; i < tensors; ++i) {
      parameters.push_back(torch::ones({64}).requires_grad_());
      parameters.back().mutable_grad() = torch::zeros({64});
    }
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> result;
    for (const auto& parameter : parameters) {
      result.push_back(parameter.grad());
    }
    return result;
  }
  std::vector<at::Tensor> parameters;
};

void scale_libtorch(benchmark::State& state) {
  const auto loss = torch::ones({}), factor = torch::full({}, 65536.0F);
  for (auto _ : state) {
    benchmark::DoNotOptimize(loss * factor);
  }
}
BENCHMARK(scale_libtorch);

void scale_torchamp(benchmark::State& state) {
  const auto loss = torch::ones({});
  torchamp::GradScaler scaler;
  for (auto _ : state) {
    benchmark::DoNotOptimize(scaler.scale(loss));
  }
}
BENCHMARK(scale_torchamp);

// Forward and backward through 100 products with 100 leaves of 64: a scaled backward pass of
// TorchAmp's also notes the leaves that it reaches.
template <typename Scale>
void backward(benchmark::State& state, const Scale& scale) {
  const Step step(100);
  for (auto _ : state) {
    auto x = torch::ones({64});
    for (const auto& parameter : step.parameters) {
      x = x * parameter;
    }
    scale(x.sum()).backward();
  }
}

void scaled_backward_libtorch(benchmark::State& state) {
  const auto factor = torch::full({}, 65536.0F);
  backward(state, [&](const at::Tensor& loss) { return loss * factor; });
}
BENCHMARK(scaled_backward_libtorch);

void scaled_backward_torchamp(benchmark::State& state) {
  torchamp::GradScaler scaler;
  backward(state, [&](const at::Tensor& loss) { return scaler.scale(loss); });
}
BENCHMARK(scaled_backward_torchamp);

// unscale_ and update of 100 gradients of 64.
void unscale_update_libtorch(benchmark::State& state) {
  const Step step(100);
  auto scale = torch::full({}, 65536.0F);
  auto tracker = torch::zeros({}, at::kInt);
  for (auto _ : state) {
    auto found = torch::zeros({});
    const auto inverse = scale.reciprocal();
    at::_amp_foreach_non_finite_check_and_unscale_(step.gradients(), found, inverse);
    at::_amp_update_scale_(scale, tracker, found, 2.0, 0.5, 2000);
  }
}
BENCHMARK(unscale_update_libtorch);

void unscale_update_torchamp(benchmark::State& state) {
  const Step step(100);
  torch::optim::SGD optimizer(step.parameters, torch::optim::SGDOptions(0.0));
  torchamp::GradScaler scaler;
  const auto loss = torch::ones({});
  for (auto _ : state) {
    scaler.scale(loss);
    scaler.unscale_(optimizer);
    scaler.update();
  }
}
BENCHMARK(unscale_update_torchamp);

}  // namespace

BENCHMARK_MAIN();
