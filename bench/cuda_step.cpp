// The optimizer phase on a GPU: unscale, check, norm, clip and AdamW over 20M float32 parameters in
// 8 or 160 tensors, and over 1000 tensors of 64. Ours is one scaler.step(); beside it, in turns,
// the kernels that Python's GradScaler, clip_grad_norm_ and AdamW(fused=True) launch, called from
// C++, and what the memory gives: an in-place mul_ over 256 MB.
//   cuda_step [--json FILE]     without a GPU: says so, measures nothing and succeeds

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kSteps = 20;   // between two looks at the clock, so that launches overlap the device
constexpr int kRounds = 15;  // medians of these
constexpr double kLr = 1e-3;

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double milliseconds_of(const std::function<void()>& step) {
  torch::cuda::synchronize();
  const auto begin = Clock::now();
  for (int i = 0; i < kSteps; ++i) step();
  torch::cuda::synchronize();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() / kSteps;
}

std::vector<at::Tensor> make(int64_t count, int64_t size, bool needs_gradient) {
  std::vector<at::Tensor> tensors;
  for (int64_t i = 0; i < count; ++i) {
    tensors.push_back(torch::full({size}, 0.01, at::device(at::kCUDA)));
    if (needs_gradient) tensors.back().requires_grad_();
  }
  return tensors;
}

struct Ours {
  Ours(int64_t count, int64_t size)
      : weights(make(count, size, true)), scaler({.init_scale = 1024}) {
    for (at::Tensor& weight : weights) weight.mutable_grad() = torch::ones_like(weight);
    optimizer =
        std::make_unique<torchamp::optim::AdamW>(weights, torchamp::optim::AdamWOptions(kLr));
    optimizer->set_max_grad_norm(1.0);
    loss = torch::zeros({}, at::device(at::kCUDA));
  }
  void step() {
    scaler.scale(
        loss);  // as every iteration does: without it the scaler asks whether it was left out
    scaler.step(*optimizer);
    scaler.update();
  }
  std::vector<at::Tensor> weights;
  at::Tensor loss;
  torchamp::GradScaler scaler;
  std::unique_ptr<torchamp::optim::AdamW> optimizer;
};

struct Python {
  Python(int64_t count, int64_t size)
      : weights(make(count, size, false)),
        gradients(make(count, size, false)),
        exp_avg(make(count, size, false)),
        exp_avg_sq(make(count, size, false)) {
    for (int64_t i = 0; i < count; ++i) steps.push_back(torch::zeros({}, at::device(at::kCUDA)));
    scale = torch::full({}, 1024.0, at::device(at::kCUDA));
    tracker = torch::zeros({}, at::device(at::kCUDA).dtype(at::kInt));
  }
  void step() {
    at::Tensor found_inf = torch::zeros({}, at::device(at::kCUDA));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, scale.reciprocal());
    const at::Tensor norm = at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, 2)), 2);
    at::_foreach_mul_(gradients, (1.0 / (norm + 1e-6)).clamp_max(1.0));
    at::_foreach_add_(steps, 1);
    at::_fused_adamw_(weights, gradients, exp_avg, exp_avg_sq, {}, steps, kLr, 0.9, 0.999, 0.01,
                      1e-8, false, false, std::optional<at::Tensor>(), found_inf);
    at::_foreach_sub_(steps, found_inf);
    at::_amp_update_scale_(scale, tracker, found_inf, 2.0, 0.5, 2000);
  }
  std::vector<at::Tensor> weights, gradients, exp_avg, exp_avg_sq, steps;
  at::Tensor scale, tracker;
};

bool write(const char* file, const std::string& rows) {
  if (file == nullptr) return true;
  std::ofstream out(file);
  out << "{\"machine\":{\"gpus\":" << static_cast<int>(torch::cuda::device_count())
      << "},\"rows\":[" << rows << "]}\n";
  if (out.flush()) return true;
  std::fprintf(stderr, "cuda_step: '%s' cannot be written; is its folder there?\n", file);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 1 && !(argc == 3 && std::strcmp(argv[1], "--json") == 0)) {
    std::fprintf(stderr, "cuda_step: '%s' is not accepted; --json FILE is, or nothing.\n", argv[1]);
    return 2;
  }
  if (!torch::cuda::is_available()) {
    std::printf("cuda_step: skipped, nothing was measured: no CUDA device was found here\n");
    return write(argc == 3 ? argv[2] : nullptr, "") ? 0 : 1;
  }
  const torch::NoGradGuard no_grad;
  const at::Tensor large = torch::ones({64 << 20}, at::device(at::kCUDA));
  std::string rows;
  std::printf("%-32s %10s %12s %7s %16s\n", "work", "ours ms", "pytorch ms", "ratio",
              "of mul_ GB/s");
  const struct {
    const char* name;
    int64_t count, size;
  } works[] = {{"phase/optimizer/cuda/8", 8, 20000000 / 8},
               {"phase/optimizer/cuda/160", 160, 20000000 / 160},
               {"phase/optimizer/cuda/1000x64", 1000, 64}};
  for (const auto& work : works) {
    Ours ours(work.count, work.size);
    Python python(work.count, work.size);
    std::vector<double> of_ours, of_python, of_memory;
    for (int round = -2; round < kRounds; ++round) {  // two to warm up
      const double a = milliseconds_of([&] { ours.step(); });
      const double b = milliseconds_of([&] { python.step(); });
      const double c = milliseconds_of([&] { large.mul_(1.0F); });
      if (round < 0) continue;
      of_ours.push_back(a);
      of_python.push_back(b);
      of_memory.push_back(c);
    }
    // Read: gradient twice, weight, two moments. Written: gradient, weight, two moments.
    const double bytes = 36.0 * static_cast<double>(work.count * work.size);
    const double mul_rate = 8.0 * static_cast<double>(large.numel()) / median(of_memory);
    const double share = bytes / median(of_ours) / mul_rate;
    std::printf("%-32s %10.4f %12.4f %7.2f %8.2f of %5.0f\n", work.name, median(of_ours),
                median(of_python), median(of_python) / median(of_ours), share, mul_rate / 1e6);
    char row[512];
    std::snprintf(row, sizeof row,
                  "%s{\"work\":\"%s\",\"ours_ms\":%.5f,\"peer\":\"pytorch\",\"peer_ms\":%.5f,"
                  "\"ratio\":%.4f,\"share_of_mul_bandwidth\":%.4f}",
                  rows.empty() ? "" : ",", work.name, median(of_ours), median(of_python),
                  median(of_python) / median(of_ours), share);
    rows += row;
    if (!ours.weights[0].isfinite().all().item<bool>()) {
      std::fprintf(stderr, "cuda_step: weights are not finite after timing\n");
      return 1;
    }
  }
  return write(argc == 3 ? argv[2] : nullptr, rows) ? 0 : 1;
}
