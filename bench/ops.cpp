// Each op that TorchAmp replaces for speed, against LibTorch's own kernel: both in turn, in one
// process, on the same tensors. Bytes are what an op must move when no cache holds a tensor between
// two passes; memory's own rate is that of a copy in the same run.
//
//   bench_ops [seconds a work] [part of a work's name]
//
// To add an op: a function that appends Works to the table in main().

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <malloc.h>

#include <ATen/Version.h>
#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace {

using torch::Tensor;

struct Work {
  std::string name;
  double bytes;
  std::function<void()> run;
};

const torch::ScalarType kDtypes[] = {torch::kBFloat16, torch::kFloat};

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }

std::string label(const char* op, const Tensor& x) {
  std::string text = std::string(op) + " " + (x.scalar_type() == torch::kFloat ? "f32" : "bf16");
  for (const int64_t size : x.sizes()) text += " " + std::to_string(size);
  return text;
}

Tensor image(torch::ScalarType dtype, at::IntArrayRef sizes) {
  return torch::randn(sizes).to(dtype).contiguous(torch::MemoryFormat::ChannelsLast);
}

// The batch norms and relus of ResNet-18 at 16x3x224x224, each shape once.
void add_image_layers(std::vector<Work>& works) {
  for (const auto dtype : kDtypes) {
    for (const auto& sizes : std::vector<std::vector<int64_t>>{{16, 64, 112, 112},
                                                               {16, 64, 56, 56},
                                                               {16, 128, 28, 28},
                                                               {16, 256, 14, 14},
                                                               {16, 512, 7, 7}}) {
      const Tensor x = image(dtype, sizes), grad = image(dtype, sizes);
      const Tensor weight = torch::rand(sizes[1]), bias = torch::rand(sizes[1]),
                   mean = torch::zeros(sizes[1]), var = torch::ones(sizes[1]);
      const auto saved = torch::native_batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-5);
      const double size = bytes_of(x);
      works.push_back({label("batch_norm", x), 3 * size, [=] {
                         torch::native_batch_norm(x, weight, bias, mean, var, true, 0.1, 1e-5);
                       }});
      works.push_back({label("batch_norm eval", x), 2 * size, [=] {
                         torch::native_batch_norm(x, weight, bias, mean, var, false, 0.1, 1e-5);
                       }});
      works.push_back({label("batch_norm backward", x), 5 * size, [=] {
                         torch::native_batch_norm_backward(grad, x, weight, mean, var,
                                                           std::get<1>(saved), std::get<2>(saved),
                                                           true, 1e-5, {true, true, true});
                       }});
      works.push_back({label("relu", x), 2 * size, [=] { torch::relu(x); }});
      works.push_back(
          {label("relu_", x), 2 * size, [y = x.clone()]() mutable { torch::relu_(y); }});
      works.push_back(
          {label("relu backward", x), 3 * size, [=] { torch::threshold_backward(grad, x, 0); }});
    }
    const Tensor x = image(dtype, {16, 64, 112, 112});
    for (const auto& [kernel, stride, padding] :
         std::vector<std::array<int64_t, 3>>{{3, 2, 1}, {2, 2, 0}}) {
      const std::vector<int64_t> k(2, kernel), s(2, stride), p(2, padding), one(2, 1);
      const auto pooled = torch::max_pool2d_with_indices(x, k, s, p);
      const Tensor grad = torch::randn_like(std::get<0>(pooled)), indices = std::get<1>(pooled);
      const double bytes = bytes_of(x) + bytes_of(grad) + bytes_of(indices);
      const std::string name = "max_pool " + std::to_string(kernel) + "/" + std::to_string(stride);
      works.push_back(
          {label(name.c_str(), x), bytes, [=] { torch::max_pool2d_with_indices(x, k, s, p); }});
      works.push_back({label((name + " backward").c_str(), x), bytes, [=] {
                         torch::max_pool2d_with_indices_backward(grad, x, k, s, p, one, false,
                                                                 indices);
                       }});
    }
  }
}

// What a GPT of width 512 with 8192 tokens computes of 8x256 tokens beside matrix products.
void add_rows(std::vector<Work>& works) {
  for (const auto dtype : kDtypes) {
    const Tensor hidden = torch::randn({2048, 2048}).to(dtype);
    for (const char* kind : {"tanh", "none"}) {
      const std::string name = std::string("gelu ") + kind;
      works.push_back(
          {label(name.c_str(), hidden), 2 * bytes_of(hidden), [=] { torch::gelu(hidden, kind); }});
      works.push_back({label((name + " backward").c_str(), hidden), 3 * bytes_of(hidden),
                       [=] { torch::gelu_backward(hidden, hidden, kind); }});
    }
    const Tensor x = torch::randn({2048, 512}).to(dtype), weight = torch::rand({512});
    const auto saved = torch::native_layer_norm(x, {512}, weight, weight, 1e-5);
    works.push_back({label("layer_norm", x), 2 * bytes_of(x),
                     [=] { torch::native_layer_norm(x, {512}, weight, weight, 1e-5); }});
    works.push_back({label("layer_norm backward", x), 3 * bytes_of(x), [=] {
                       torch::native_layer_norm_backward(x, x, {512}, std::get<1>(saved),
                                                         std::get<2>(saved), weight, weight,
                                                         {true, true, true});
                     }});
    const Tensor logits = torch::randn({2048, 8192}).to(dtype);
    const Tensor target = torch::randint(8192, {2048}, torch::kLong);
    const Tensor log_probabilities = torch::log_softmax(logits, 1);
    works.push_back({label("log_softmax", logits), 2 * bytes_of(logits),
                     [=] { torch::log_softmax(logits, 1); }});
    works.push_back({label("log_softmax backward", logits), 3 * bytes_of(logits), [=] {
                       torch::_log_softmax_backward_data(logits, log_probabilities, 1,
                                                         logits.scalar_type());
                     }});
    works.push_back(
        {label("cross entropy under autocast, both ways", logits), 3 * bytes_of(logits), [=] {
           const torch::AutoGradMode grad_mode(true);
           const Tensor leaf = logits.detach().requires_grad_();
           Tensor loss;
           {
             const torchamp::Autocast region(torch::kCPU, torch::kBFloat16);
             loss = torch::cross_entropy_loss(leaf, target);
           }
           torch::autograd::grad({loss}, {leaf});
         }});
  }
}

double milliseconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double gigabytes_per_second(double bytes, double ms) { return bytes / ms / 1e6; }

double rate_of_copy() {
  const Tensor from = torch::ones(1 << 26), to = torch::zeros(1 << 26);
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) times.push_back(milliseconds([&] { to.copy_(from); }));
  return gigabytes_per_second(2 * bytes_of(from), median(times));
}

void compare(const Work& work, double seconds, double copy_rate) {
  std::vector<double> before, ours;
  for (double total_ms = 0; total_ms < seconds * 1e3 || ours.size() < 5;) {
    torchamp::ops::uninstall();
    work.run();
    before.push_back(milliseconds(work.run));
    torchamp::ops::install();
    work.run();
    ours.push_back(milliseconds(work.run));
    total_ms += 2 * (before.back() + ours.back());
  }
  const double rate = gigabytes_per_second(work.bytes, median(ours));
  std::printf("%-42s %9.3f %9.3f %7.2f %7.1f %6.2f\n", work.name.c_str(), median(before),
              median(ours), median(before) / median(ours), rate, rate / copy_rate);
}

}  // namespace

int main(int argc, char** argv) {
  // Memory that goes back to the system costs more than the op: the kernels alone are compared.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  const double seconds = argc > 1 ? std::max(0.01, std::atof(argv[1])) : 1.0;
  const std::string part = argc > 2 ? argv[2] : "";
  const torch::NoGradGuard no_grad;
  std::vector<Work> works;
  add_image_layers(works);
  add_rows(works);
  const double copy_rate = rate_of_copy();
  std::printf("LibTorch %s, %d threads, %s; a copy moves %.1f GB/s\n", TORCH_VERSION,
              at::get_num_threads(), at::get_cpu_capability().c_str(), copy_rate);
  std::printf("%-42s %9s %9s %7s %7s %6s\n", "", "LibTorch", "ours, ms", "ratio", "GB/s", "/copy");
  for (const Work& work : works) {
    if (work.name.find(part) != std::string::npos) compare(work, seconds, copy_rate);
  }
  return 0;
}
