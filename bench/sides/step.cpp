// A training step: forward, cross entropy, backward, clipping to a norm of 1, AdamW.

#include <chrono>
#include <stdexcept>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "bench/sides/side.h"
#include "models/model.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/ops/caching_allocator.h"
#include "torchamp/ops/install.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/train/memory_layout.h"
#include "torchamp/train/module_state.h"

namespace torchamp::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLr = 1e-3;
constexpr double kMaxNorm = 1.0;
constexpr int kNumBatches = 4;  // enough that no batch waits in the cache for its turn

std::optional<at::ScalarType> dtype_of(const std::string& precision) {
  if (precision == "fp32") return std::nullopt;
  if (precision == "bf16") return at::kBFloat16;
  if (precision == "fp16") return at::kHalf;
  throw std::invalid_argument("precision=" + precision + " came; fp32, bf16 or fp16 is accepted");
}

int64_t batch_size(const std::string& model) {
  if (model == "mlp") return 256;
  if (model == "cnn") return 128;
  return model == "gpt" ? 8 : 16;
}

// Everything but the step itself.
class Step : public Side {
 public:
  explicit Step(const Settings& settings)
      : dtype_(dtype_of(settings.at("precision"))),
        model_(models::make_model(settings.at("model"))) {
    const base::StateDict start = checkpoint::load(settings.at("start"));
    train::load_module_state_dict(*model_, start.at("model").to_dict("model"));
    const bool is_image = model_->input_spec().is_image;
    if (is_image) train::to_channels_last(*model_);
    model_->train();
    for (int i = 0; i < kNumBatches; ++i) {
      const std::string number = std::to_string(i);
      const at::Tensor& input = start.at("input" + number).to_tensor("input");
      inputs_.push_back(
          input.clone(is_image ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous));
      targets_.push_back(start.at("target" + number).to_tensor("target").clone());
    }
  }

  double run() override {
    const size_t i = losses_.size() % kNumBatches;
    const auto begin = Clock::now();
    const at::Tensor loss = step(inputs_[i], targets_[i]);
    const auto end = Clock::now();
    losses_.push_back(loss.item<double>());
    return std::chrono::duration<double, std::milli>(end - begin).count();
  }

  base::StateDict result() override {
    base::StateDict dict;
    dict.set("losses", torch::tensor(losses_, at::kDouble));
    dict.set("model", full_state());
    return dict;
  }

 protected:
  virtual at::Tensor step(const at::Tensor& input, const at::Tensor& target) = 0;
  virtual base::StateDict full_state() { return train::module_state_dict(*model_); }

  at::Tensor forward_loss(const at::Tensor& input, const at::Tensor& target) {
    return torch::cross_entropy_loss(model_->forward(input).flatten(0, -2), target.flatten());
  }

  const std::optional<at::ScalarType> dtype_;
  const std::shared_ptr<models::Model> model_;

 private:
  std::vector<at::Tensor> inputs_, targets_;
  std::vector<double> losses_;
};

// The fastest way of TorchAmp that computes what fp32 weights under autocast do.
class Ours final : public Step {
 public:
  explicit Ours(const Settings& settings)
      : Step(settings),
        scaler_({.enabled = dtype_ == at::kHalf}),
        optimizer_(convert(*model_, dtype_), torch::optim::AdamWOptions(kLr),
                   fused_options(settings)) {
    ops::install();
    if (settings.get("allocator", "on") == "on") ops::install_caching_allocator();
  }

 private:
  static std::vector<at::Tensor> convert(models::Model& model,
                                         std::optional<at::ScalarType> dtype) {
    if (dtype) optim::to_low_precision(model, *dtype);
    return model.parameters();
  }

  static optim::FusedOptions fused_options(const Settings& settings) {
    optim::FusedOptions options;
    options.max_grad_norm = kMaxNorm;
    options.consume_gradients = true;
    if (settings.get("roots", "libtorch") == "ieee") options.roots = optim::Roots::kIeee;
    if (settings.get("moments", "fp32") == "bf16") options.moments = optim::Moments::kBFloat16;
    return options;
  }

  at::Tensor step(const at::Tensor& input, const at::Tensor& target) override {
    at::Tensor loss;
    {
      const amp::Autocast autocast(at::kCPU, dtype_, {.enabled = dtype_.has_value()});
      loss = forward_loss(input, target);
    }
    scaler_.scale(loss).backward();
    scaler_.step(optimizer_);
    scaler_.update();
    return loss.detach();
  }

  base::StateDict full_state() override { return optim::full_state_dict(*model_); }

  amp::GradScaler scaler_;
  optim::AdamW optimizer_;
};

// As one writes it with LibTorch alone.
class LibTorch final : public Step {
 public:
  explicit LibTorch(const Settings& settings)
      : Step(settings),
        parameters_(model_->parameters()),
        optimizer_(parameters_, torch::optim::AdamWOptions(kLr)) {}

 private:
  at::Tensor step(const at::Tensor& input, const at::Tensor& target) override {
    if (dtype_) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      at::autocast::set_autocast_dtype(at::kCPU, *dtype_);
    }
    const at::Tensor loss = forward_loss(input, target);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    const bool scaled = dtype_ == at::kHalf;
    (scaled ? loss * kScale : loss).backward();
    if (!scaled || unscale()) {
      torch::nn::utils::clip_grad_norm_(parameters_, kMaxNorm);
      optimizer_.step();
    }
    optimizer_.zero_grad();
    return loss.detach();
  }

  bool unscale() {
    bool is_finite = true;
    for (const at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().mul_(1 / kScale);
      is_finite = is_finite && at::isfinite(parameter.grad()).all().item<bool>();
    }
    return is_finite;
  }

  static constexpr double kScale = 65536;
  std::vector<at::Tensor> parameters_;
  torch::optim::AdamW optimizer_;
};

}  // namespace

base::StateDict start_of_step(const Settings& settings) {
  torch::manual_seed(0);
  const std::shared_ptr<models::Model> model = models::make_model(settings.at("model"));
  const models::InputSpec spec = model->input_spec();
  std::vector<int64_t> shape = {batch_size(settings.at("model"))};
  const std::vector<int64_t> one_an_example = shape;
  shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
  base::StateDict start;
  start.set("model", train::module_state_dict(*model));
  for (int i = 0; i < kNumBatches; ++i) {
    const std::string number = std::to_string(i);
    start.set("input" + number, spec.dtype == at::kLong
                                    ? torch::randint(spec.num_classes, shape, at::kLong)
                                    : torch::randn(shape));
    start.set("target" + number,
              torch::randint(spec.num_classes, spec.is_text ? shape : one_an_example, at::kLong));
  }
  return start;
}

std::unique_ptr<Side> make_step(const Settings& settings) {
  const std::string& side = settings.at("side");
  if (side == "ours") return std::make_unique<Ours>(settings);
  if (side == "libtorch") return std::make_unique<LibTorch>(settings);
  throw std::invalid_argument("side=" + side + " came; ours or libtorch is accepted");
}

}  // namespace torchamp::bench
