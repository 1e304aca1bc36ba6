// How many dtype casts a forward and backward pass makes, with LibTorch's cast cache and with
// TorchAmp's: every call of aten::_to_copy in it, casts of activations and gradients included.
//
//   casts_per_step

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/record_function.h>
#include <torch/torch.h>

#include "models/model.h"
#include "torchamp/torchamp.h"

namespace {

using torchamp::amp::AutocastPolicy;

thread_local int64_t casts = 0;

std::unique_ptr<at::ObserverContext> count_cast(const at::RecordFunction& function) {
  casts += std::string_view(function.name()) == "aten::_to_copy" ? 1 : 0;
  return nullptr;
}

// The MLP as most programs write it: with torch::nn::Linear, which multiplies by weight.t().
struct LinearMlp : torchamp::models::Model {
  LinearMlp() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Linear(1024, 512), torch::nn::ReLU(),
                                                   torch::nn::Linear(512, 10)));
  }
  torch::Tensor forward(torch::Tensor input) override { return layers->forward(input); }
  torchamp::models::InputSpec input_spec() const override { return {}; }
  torch::nn::Sequential layers{nullptr};
};

struct Subject {
  std::string name;
  std::shared_ptr<torchamp::models::Model> model;
  torch::Tensor input;
};

void forward(const Subject& subject, bool backward) {
  const auto loss = subject.model->forward(subject.input).to(torch::kFloat).sum();
  if (backward && loss.requires_grad()) {
    loss.backward();
  }
}

void set_frozen(const Subject& subject, bool frozen) {
  auto parameters = subject.model->parameters();
  for (size_t i = 0; i + 2 < parameters.size(); ++i) {  // all but the head
    parameters[i].set_requires_grad(!frozen);
  }
}

int64_t count(const Subject& subject, const std::string& work, const AutocastPolicy& policy) {
  set_frozen(subject, work == "frozen, 4 batches");
  const torchamp::Autocast region(torch::kCPU, torch::kBFloat16, {.policy = policy});
  casts = 0;
  if (work == "training step") {
    forward(subject, true);
  } else if (work == "inference, 4 batches") {
    const c10::InferenceMode inference;
    for (int i = 0; i < 4; ++i) forward(subject, false);
  } else {
    for (int i = 0; i < 4; ++i) forward(subject, true);
  }
  return casts;
}

}  // namespace

int main() {
  torch::manual_seed(1);
  at::addThreadLocalCallback(at::RecordFunctionCallback(count_cast));
  const std::vector<Subject> subjects{
      {"mlp", torchamp::models::make_model("mlp", {}), torch::randn({8, 1024})},
      {"mlp of nn::Linear", std::make_shared<LinearMlp>(), torch::randn({8, 1024})},
      {"resnet18", torchamp::models::make_model("resnet18", {}), torch::randn({2, 3, 64, 64})},
      {"gpt", torchamp::models::make_model("gpt", {}), torch::randint(50, {1, 16})}};
  std::printf("Casts, all in one bf16 region on CPU\n%-20s %-22s %10s %10s\n", "model", "work",
              "LibTorch", "TorchAmp");
  for (const auto& subject : subjects) {
    for (const char* work :
         {"training step", "training, 4 batches", "frozen, 4 batches", "inference, 4 batches"}) {
      std::printf("%-20s %-22s %10ld %10ld\n", subject.name.c_str(), work,
                  static_cast<long>(count(subject, work, AutocastPolicy::none())),
                  static_cast<long>(count(subject, work, AutocastPolicy::libtorch(torch::kCPU))));
    }
  }
}
