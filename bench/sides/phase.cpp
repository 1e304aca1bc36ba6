// What follows backward(): unscale, check, norm, clip to 1, AdamW; on weights and gradients that
// are given, so that nothing else is timed.

#include <chrono>
#include <stdexcept>

#include <torch/torch.h>

#include "bench/sides/side.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/low_precision.h"

namespace torchamp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLr = 1e-3;
constexpr double kMaxNorm = 1.0;
constexpr double kScale = 65536;  // that the given gradients carry
constexpr int kNumGradients = 2;  // sets that take turns, so that moments move

struct Shape {
  int64_t count, rows, columns;
};

Shape shape_of(const std::string& size) {
  if (size == "8") return {8, 1250, 2000};
  if (size == "160") return {160, 250, 500};
  if (size == "1000x64") return {1000, 8, 8};
  throw std::invalid_argument("size=" + size + " came; 8, 160 or 1000x64 is accepted");
}

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

class Phase : public Side {
 public:
  explicit Phase(const Settings& settings) : shape_(shape_of(settings.at("size"))) {
    const torch::NoGradGuard no_grad;
    const base::StateDict start = checkpoint::load(settings.at("start"));
    const auto part = [&](const std::string& name, int64_t i) {  // one tensor of all, by rows
      return start.at(name).to_tensor(name).narrow(0, i * shape_.rows, shape_.rows);
    };
    for (int64_t i = 0; i < shape_.count; ++i) {
      torch::nn::Linear layer(torch::nn::LinearOptions(shape_.columns, shape_.rows).bias(false));
      layer->weight.copy_(part("weights", i));
      layers_->push_back(layer);
    }
    for (int set = 0; set < kNumGradients; ++set) {
      for (int64_t i = 0; i < shape_.count; ++i) {
        given_[set].push_back(part("gradients" + std::to_string(set), i).clone());
      }
    }
  }

  double run() override {
    fill_gradients();
    scaler_.scale(at::ones({}));  // as the backward pass would have been asked for
    const auto begin = Clock::now();
    update();
    return milliseconds_since(begin);
  }

  base::StateDict result() override {
    std::vector<at::Tensor> weights;
    for (const at::Tensor& parameter : layers_->parameters()) {
      weights.push_back(optim::full_precision(parameter).detach());
    }
    base::StateDict dict;
    dict.set("weights", at::cat(weights));
    return dict;
  }

 protected:
  virtual void update() = 0;

  // The same copies on every side, into the same memory every time.
  void fill_gradients() {
    const torch::NoGradGuard no_grad;
    const std::vector<at::Tensor> parameters = layers_->parameters();
    if (gradients_.empty()) {
      for (const at::Tensor& parameter : parameters)
        gradients_.push_back(at::empty_like(parameter));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      gradients_[i].copy_(given_[runs_ % kNumGradients][i]);
      parameters[i].mutable_grad() = gradients_[i];
    }
    ++runs_;
  }

  const Shape shape_;
  torch::nn::Sequential layers_;
  amp::GradScaler scaler_{{.init_scale = kScale}};

 private:
  std::vector<at::Tensor> given_[kNumGradients], gradients_;
  int64_t runs_ = 0;
};

// GradScaler says that bfloat16 needs no scale; here it is given one, to do what the others do.
class DropWarnings : public c10::WarningHandler {
  void process(const c10::Warning& /*warning*/) override {}
};

class Ours final : public Phase {
 public:
  explicit Ours(const Settings& settings) : Phase(settings) {
    if (settings.at("weights") == "bf16-master") {
      static DropWarnings drop;
      c10::WarningUtils::set_warning_handler(&drop);
      optim::to_low_precision(*layers_, at::kBFloat16);
    }
    optim::FusedOptions options;
    options.max_grad_norm = kMaxNorm;
    options.consume_gradients = true;
    if (settings.get("roots", "libtorch") == "ieee") options.roots = optim::Roots::kIeee;
    optimizer_ = std::make_unique<optim::AdamW>(layers_->parameters(),
                                                torch::optim::AdamWOptions(kLr), options);
  }

 private:
  void update() override {
    scaler_.step(*optimizer_);
    scaler_.update();
  }

  std::unique_ptr<optim::AdamW> optimizer_;
};

// As one writes it with LibTorch alone.
class LibTorch final : public Phase {
 public:
  explicit LibTorch(const Settings& settings)
      : Phase(settings),
        parameters_(layers_->parameters()),
        optimizer_(parameters_, torch::optim::AdamWOptions(kLr)) {}

 private:
  void update() override {
    bool is_finite = true;
    for (const at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().mul_(1 / kScale);
      is_finite = is_finite && at::isfinite(parameter.grad()).all().item<bool>();
    }
    if (!is_finite) return;
    torch::nn::utils::clip_grad_norm_(parameters_, kMaxNorm);
    optimizer_.step();
  }

  std::vector<at::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
};

}  // namespace

base::StateDict start_of_phase(const Settings& settings) {
  const Shape shape = shape_of(settings.at("size"));
  torch::manual_seed(0);
  const std::vector<int64_t> sizes = {shape.count * shape.rows, shape.columns};
  base::StateDict start;
  start.set("weights", torch::randn(sizes).mul_(0.02));
  for (int set = 0; set < kNumGradients; ++set) {
    // Values that bfloat16 holds, so that every side sees the same.
    const at::Tensor gradients = torch::randn(sizes).mul_(0.01).to(at::kBFloat16).to(at::kFloat);
    start.set("gradients" + std::to_string(set), gradients.mul_(kScale));
  }
  return start;
}

std::unique_ptr<Side> make_phase(const Settings& settings) {
  const std::string& side = settings.at("side");
  if (side == "ours") return std::make_unique<Ours>(settings);
  if (side == "libtorch") return std::make_unique<LibTorch>(settings);
  return make_memory(settings);
}

}  // namespace torchamp::bench
