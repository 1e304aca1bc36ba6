#pragma once
// A small training in mixed precision that this folder's interop_mixed.py has step for step in
// Python, and the five keys of its checkpoint.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/optim/state.h"
#include "torchamp/train/module_state.h"

namespace torchamp {

struct MixedCase {
  std::string optimizer;
  at::ScalarType dtype;

  std::string name() const { return optimizer + (dtype == at::kHalf ? "_fp16" : "_bf16"); }
};

inline std::vector<MixedCase> mixed_cases() {
  std::vector<MixedCase> cases;
  for (const char* optimizer : {"adamw", "adam", "amsgrad", "sgd", "nesterov", "libtorch_sgd"}) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
      cases.push_back({optimizer, dtype});
  }
  return cases;
}

// Linear(6, 16), ReLU, Linear(16, 3) by the op that Python's Linear calls.
struct MixedNetImpl : torch::nn::Module {
  MixedNetImpl()
      : fc1(register_module("fc1", torch::nn::Linear(6, 16))),
        fc2(register_module("fc2", torch::nn::Linear(16, 3))) {}
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = at::relu(at::linear(input, fc1->weight, fc1->bias));
    return at::linear(hidden, fc2->weight, fc2->bias);
  }
  torch::nn::Linear fc1;
  torch::nn::Linear fc2;
};
TORCH_MODULE(MixedNet);

class MixedTraining {
 public:
  explicit MixedTraining(const MixedCase& each)
      : dtype_(each.dtype),
        optimizer_(make(each.optimizer)),
        // Overflows at first, and again after each growth: skipped steps are passed on, too.
        scaler_({.init_scale = 0x1p19, .growth_interval = 2, .enabled = dtype_ == at::kHalf}) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : net_->parameters()) {
      parameter.copy_(ramp(parameter.numel(), 7, 3).reshape(parameter.sizes()) / 16);
    }
  }

  void steps(int64_t first, int64_t last) {
    for (int64_t step = first; step < last; ++step) {
      const at::Tensor input = ramp(5 * 6, 11, step + 1).reshape({5, 6}) / 4;
      const at::Tensor target = (torch::arange(5) + step) % 3;
      optimizer_->zero_grad();
      at::Tensor loss;
      {
        const amp::Autocast region(at::kCPU, dtype_);
        loss = torch::cross_entropy_loss(net_->forward(input), target);
      }
      scaler_.scale(loss).backward();
      scaler_.step(*optimizer_);
      scaler_.update();
      loss_ = loss.detach();
    }
  }

  base::StateDict state_dict() const {
    base::StateDict dict;
    dict.set("epoch", 1);
    dict.set("model_state_dict", train::module_state_dict(*net_));
    dict.set("optimizer_state_dict", optim::optimizer_state_dict(*optimizer_));
    dict.set("scaler_state_dict", scaler_.state_dict());
    dict.set("loss", dtype_ == at::kHalf ? base::Value(loss_) : base::Value(loss_.item<double>()));
    return dict;
  }

  void load_state_dict(const base::StateDict& dict) {
    train::load_module_state_dict(*net_, dict.at("model_state_dict").to_dict());
    optim::load_optimizer_state_dict(*optimizer_, dict.at("optimizer_state_dict").to_dict());
    if (scaler_.is_enabled()) scaler_.load_state_dict(dict.at("scaler_state_dict").to_dict());
  }

 private:
  // (i * factor * scale) mod 13 - 6.
  static at::Tensor ramp(int64_t count, int64_t factor, int64_t scale) {
    return ((torch::arange(count) * factor * scale) % 13 - 6).to(at::kFloat);
  }

  std::unique_ptr<torch::optim::Optimizer> make(const std::string& name) {
    const std::vector<at::Tensor> parameters = net_->parameters();
    const auto sgd = torch::optim::SGDOptions(0.125).momentum(0.9);
    if (name == "adamw") {
      return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions(0.0625));
    }
    if (name == "adam" || name == "amsgrad") {
      return std::make_unique<optim::Adam>(
          parameters, optim::AdamOptions(0.0625).weight_decay(0.125).amsgrad(name == "amsgrad"));
    }
    if (name == "libtorch_sgd") return std::make_unique<torch::optim::SGD>(parameters, sgd);
    auto options = sgd;
    if (name == "nesterov") options.nesterov(true).weight_decay(0.125);
    return std::make_unique<optim::SGD>(parameters, options);
  }

  at::ScalarType dtype_;
  MixedNet net_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  amp::GradScaler scaler_;
  at::Tensor loss_ = torch::zeros({});
};

// Weights, optimizer states and scaler, bit for bit.
inline void expect_same_run(const base::StateDict& a, const base::StateDict& b,
                            const std::string& name) {
  const auto part = [](const base::StateDict& dict, const char* key) {
    return dict.at(key).to_dict();
  };
  EXPECT_TRUE(same(part(a, "model_state_dict"), part(b, "model_state_dict"))) << name;
  EXPECT_TRUE(same(part(a, "optimizer_state_dict").at("state").to_dict(),
                   part(b, "optimizer_state_dict").at("state").to_dict()))
      << name;
  EXPECT_TRUE(same(part(a, "scaler_state_dict"), part(b, "scaler_state_dict"))) << name;
}

}  // namespace torchamp
