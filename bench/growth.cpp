// How the cost of a training step grows, and how large a batch fits into a given memory.
//
//   growth time              step time against batch, width and depth, with a straight line's fit
//   growth batch [MiB]       the largest batch whose step holds at most so many bytes of tensors
//
// Each point is the fastest of a few steps of TorchAmp: autocast, its ops and its allocator, its
// AdamW with clipping; 16-bit runs keep 16-bit weights with their masters. The points of a line
// take turns.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "models/model.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/ops/caching_allocator.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/memory_layout.h"
#include "torchamp/train/meter.h"

namespace {

using torchamp::models::ModelOptions;
using torchamp::train::Precision;
using Clock = std::chrono::steady_clock;

constexpr Precision kPrecisions[] = {Precision::kFp32, Precision::kBf16, Precision::kFp16};

struct Work {
  std::string model;
  ModelOptions options;
  int64_t batch = 0;
};

class Step {
 public:
  Step(const Work& work, Precision precision)
      : dtype_(torchamp::train::autocast_dtype(precision)),
        model_(torchamp::models::make_model(work.model, work.options)),
        scaler_({.enabled = precision == Precision::kFp16}) {
    const torchamp::models::InputSpec spec = model_->input_spec();
    if (spec.is_image) torchamp::train::to_channels_last(*model_);
    if (dtype_) torchamp::optim::to_low_precision(*model_, *dtype_);
    torchamp::optim::FusedOptions fused;
    fused.max_grad_norm = 1.0;
    fused.consume_gradients = true;
    optimizer_.emplace(model_->parameters(), torch::optim::AdamWOptions(1e-3), fused);
    std::vector<int64_t> shape = {work.batch};
    const std::vector<int64_t> one_an_example = shape;
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    input_ = spec.dtype == at::kLong ? torch::randint(spec.num_classes, shape, at::kLong)
                                     : torch::randn(shape);
    if (spec.is_image) input_ = input_.contiguous(at::MemoryFormat::ChannelsLast);
    target_ = torch::randint(spec.num_classes, spec.is_text ? shape : one_an_example, at::kLong);
  }

  double run() {
    const auto begin = Clock::now();
    at::Tensor loss;
    {
      const torchamp::amp::Autocast autocast(at::kCPU, dtype_, {.enabled = dtype_.has_value()});
      loss = torch::cross_entropy_loss(model_->forward(input_).flatten(0, -2), target_.flatten());
    }
    scaler_.scale(loss).backward();
    scaler_.step(*optimizer_);
    scaler_.update();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  }

 private:
  std::optional<at::ScalarType> dtype_;
  std::shared_ptr<torchamp::models::Model> model_;
  torchamp::amp::GradScaler scaler_;
  std::optional<torchamp::optim::AdamW> optimizer_;
  at::Tensor input_, target_;
};

// The most bytes that tensors hold in a step, weights, gradients and optimizer state included.
int64_t peak_bytes(const Work& work, Precision precision) {
  torch::manual_seed(0);
  torchamp::train::TensorMemoryMeter meter;
  Step step(work, precision);
  step.run();
  meter.reset_peak();
  step.run();
  return meter.peak_bytes();
}

struct Line {
  double a = 0, b = 0;
  double residual = 0;  // largest distance from the line, as a part of the value there
};

// Least squares of the relative distance, so that small values count as much as large ones.
Line fit(const std::vector<double>& x, const std::vector<double>& y) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double weight = 1 / (y[i] * y[i]);
    w += weight;
    wx += weight * x[i];
    wy += weight * y[i];
    wxx += weight * x[i] * x[i];
    wxy += weight * x[i] * y[i];
  }
  Line line;
  line.b = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  line.a = (wy - line.b * wx) / w;
  for (size_t i = 0; i < x.size(); ++i) {
    line.residual = std::max(line.residual, std::abs(line.a + line.b * x[i] - y[i]) / y[i]);
  }
  return line;
}

struct Growth {
  const char* name;
  const char* unit;         // of x
  std::vector<double> x;    // what the line is fitted over
  std::vector<Work> works;  // by x
  int turns;
};

std::vector<Growth> growths() {
  std::vector<Growth> all;
  const auto by_batch = [&](const char* name, const Work& work, std::vector<int64_t> batches,
                            int turns) {
    Growth growth = {name, "batch", {}, {}, turns};
    for (const int64_t batch : batches) {
      growth.x.push_back(static_cast<double>(batch));
      growth.works.push_back({work.model, work.options, batch});
    }
    all.push_back(growth);
  };
  by_batch("mlp 1024-4096-4096-10", {"mlp", {}, 0}, {4, 8, 16, 32, 64}, 7);
  by_batch("cnn 28x28", {"cnn", {}, 0}, {4, 8, 16, 32, 64}, 15);
  by_batch("resnet18 64x64", {"resnet18", {.image_size = 64}, 0}, {4, 8, 16, 32, 64}, 4);
  by_batch("gpt 256 wide, 4 layers, 64 tokens",
           {"gpt", {.vocab_size = 2048, .context = 64, .d_model = 256, .num_layers = 4}, 0},
           {4, 8, 16, 32, 64}, 4);
  Growth width = {"mlp n-n-n-10, batch 64", "million weights", {}, {}, 4};
  for (const int64_t n : {512, 1024, 2048, 4096, 8192}) {
    width.x.push_back(static_cast<double>(2 * n * n + 10 * n) / 1e6);
    width.works.push_back({"mlp", {.hidden = {n, n}, .in_features = n}, 64});
  }
  all.push_back(width);
  Growth depth = {"gpt 256 wide, 64 tokens, batch 8", "layers", {}, {}, 5};
  for (const int64_t layers : {1, 2, 4, 8, 16}) {
    depth.x.push_back(static_cast<double>(layers));
    depth.works.push_back(
        {"gpt", {.vocab_size = 2048, .context = 64, .d_model = 256, .num_layers = layers}, 8});
  }
  all.push_back(depth);
  return all;
}

// Steps of all points take turns, so that a slow second falls on every one.
std::vector<double> fastest_ms(const Growth& growth, Precision precision) {
  std::vector<std::unique_ptr<Step>> steps;
  for (const Work& work : growth.works) {
    torch::manual_seed(0);
    steps.push_back(std::make_unique<Step>(work, precision));
  }
  std::vector<double> best(steps.size(), 1e30);
  for (int turn = 0; turn <= growth.turns; ++turn) {
    for (size_t i = 0; i < steps.size(); ++i) {
      steps[i]->run();  // brings its own data into the caches
      const double ms = steps[i]->run();
      if (turn > 0) best[i] = std::min(best[i], ms);
    }
  }
  return best;
}

void measure_times(const char* only) {
  for (const Growth& growth : growths()) {
    if (only != nullptr && std::strstr(growth.name, only) == nullptr) continue;
    std::printf("\n%s, against %s\n%-5s", growth.name, growth.unit, "");
    for (const double x : growth.x) std::printf(" %9.4g", x);
    std::printf("   line (ms)                 farthest point\n");
    for (const Precision precision : kPrecisions) {
      const std::vector<double> ms = fastest_ms(growth, precision);
      const Line line = fit(growth.x, ms);
      std::printf("%-5s", torchamp::train::format_precision(precision));
      for (const double each : ms) std::printf(" %9.3f", each);
      std::printf("   %8.3f + %8.4f x       %4.1f%%\n%-5s", line.a, line.b, 100 * line.residual,
                  "  MiB");
      for (const Work& work : growth.works) {
        std::printf(" %9.1f", static_cast<double>(peak_bytes(work, precision)) / (1 << 20));
      }
      std::printf("\n");
      std::fflush(stdout);
      torchamp::ops::empty_cache();
    }
  }
}

// Each guess is where the line through two measured peaks meets the limit, until a batch that fits
// and one that does not are within 1 in 100. Every answer is a measured peak.
int64_t largest_batch(Work work, Precision precision, int64_t bytes, int64_t& peak) {
  const auto peak_of = [&](int64_t batch) {
    work.batch = batch;
    return peak_bytes(work, precision);
  };
  const auto step_from = [](int64_t batch) { return std::max<int64_t>(1, batch / 100); };
  const int64_t first = 4, first_peak = peak_of(first);
  int64_t other = 16, other_peak = peak_of(other);
  int64_t fits = 0, too_large = std::numeric_limits<int64_t>::max();
  while (too_large - fits > step_from(fits)) {
    const double each =
        static_cast<double>(other_peak - first_peak) / static_cast<double>(other - first);
    const double room = static_cast<double>(bytes - first_peak) / std::max(1.0, each);
    int64_t guess = std::max<int64_t>(1, first + static_cast<int64_t>(room));
    if (guess <= fits) guess = fits + step_from(fits);
    if (guess >= too_large) guess = too_large - step_from(too_large);
    if (guess <= fits) guess = fits + (too_large - fits) / 2;
    const int64_t measured = peak_of(guess);
    if (measured <= bytes) {
      fits = guess;
      peak = measured;
    } else {
      too_large = guess;
    }
    if (too_large == 1) return 0;
    if (guess != first) {
      other = guess;
      other_peak = measured;
    }
  }
  return fits;
}

void measure_batches(int64_t mib) {
  // A narrow MLP: the wide one is nearly all weights, and its batch fills memory after minutes
  // only.
  const std::vector<Work> works = {
      {"mlp", {.hidden = {1024, 1024}}, 0}, {"resnet18", {}, 0}, {"gpt", {}, 0}};
  std::printf("The largest batch within %lld MiB of tensors (peak), to 1 in 100\n%-10s",
              static_cast<long long>(mib), "");
  for (const Precision precision : kPrecisions) {
    std::printf(" %26s", torchamp::train::format_precision(precision));
  }
  std::printf("\n");
  for (const Work& work : works) {
    std::printf("%-10s", work.model.c_str());
    double fp32 = 0;
    for (const Precision precision : kPrecisions) {
      int64_t peak = 0;
      const int64_t batch = largest_batch(work, precision, mib << 20, peak);
      if (precision == Precision::kFp32) fp32 = static_cast<double>(batch);
      std::printf(" %6lld (%6.1f MiB) %5.2fx  ", static_cast<long long>(batch),
                  static_cast<double>(peak) / (1 << 20), static_cast<double>(batch) / fp32);
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  torchamp::ops::install();
  torchamp::ops::install_caching_allocator();
  if (mode == "time") {
    measure_times(argc > 2 ? argv[2] : nullptr);
  } else if (mode == "batch") {
    measure_batches(argc > 2 ? std::atoll(argv[2]) : 1024);
  } else {
    std::fprintf(stderr, "usage: growth time [PART OF A NAME] | growth batch [MiB]\n");
    return 2;
  }
  return 0;
}
