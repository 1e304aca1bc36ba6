// What users report about mixed precision, case by case: casts of weights that are kept. The
// numbers are those of tests/reference_map.tsv.

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;
using Forward = std::function<at::Tensor(const at::Tensor& x)>;

// A layer of one weight, 1 at first, in each way that a program may use it.
struct Layer {
  const char* name;
  at::Tensor weight;
  Forward forward;
};

std::vector<Layer> layers() {
  const auto by_mm = torch::ones({1, 1}).requires_grad_();
  const auto by_view = torch::ones({1, 1}).requires_grad_();
  const auto by_linear = torch::ones({1, 1}).requires_grad_();
  const auto frozen = torch::ones({1, 1});
  torch::nn::Linear module(torch::nn::LinearOptions(1, 1).bias(false));
  const torch::NoGradGuard no_grad;
  module->weight.fill_(1);
  return {
      {"mm", by_mm, [=](const at::Tensor& x) { return torch::mm(x, by_mm); }},
      {"t()", by_view, [=](const at::Tensor& x) { return torch::mm(x, by_view.t()); }},
      {"linear", by_linear, [=](const at::Tensor& x) { return at::linear(x, by_linear); }},
      {"nn::Linear", module->weight, [=](const at::Tensor& x) mutable { return module(x); }},
      {"frozen", frozen, [=](const at::Tensor& x) { return torch::mm(x, frozen); }},
  };
}

std::vector<std::pair<const char*, std::unique_ptr<torch::optim::Optimizer>>> optimizers(
    const at::Tensor& weight) {
  std::vector<std::pair<const char*, std::unique_ptr<torch::optim::Optimizer>>> all;
  const std::vector<at::Tensor> parameters{weight};
  all.emplace_back("SGD", sgd(parameters));
  // The first steps of these move the weight by the learning rate, whatever the gradient.
  all.emplace_back("Adam", std::make_unique<torch::optim::Adam>(parameters, 1.0));
  all.emplace_back("AdamW", std::make_unique<torch::optim::AdamW>(
                                parameters, torch::optim::AdamWOptions(1.0).weight_decay(0)));
  return all;
}

TEST(Case21, ALoopInsideOneRegionSeesEveryStepOfAPlainOptimizer) {
  const auto x = torch::ones({1, 1});
  for (size_t o = 0; o < optimizers(torch::ones({1})).size(); ++o) {
    for (const auto& layer : layers()) {
      if (!layer.weight.requires_grad()) {
        continue;
      }
      const auto [name, optimizer] = std::move(optimizers(layer.weight)[o]);
      std::vector<float> seen;
      {
        const Autocast region(at::kCPU, at::kBFloat16);
        for (int i = 0; i < 3; ++i) {
          optimizer->zero_grad();
          const auto y = layer.forward(x);
          seen.push_back(y.item<float>());
          y.sum().backward();
          optimizer->step();
        }
      }
      const Autocast region(at::kCPU, at::kBFloat16);
      seen.push_back(layer.forward(x).item<float>());
      const std::vector<float> expected{1, 0, -1, -2};
      for (size_t i = 0; i < expected.size(); ++i) {
        // SGD's steps are exact; Adam's are of a size of 1 within a few roundings.
        EXPECT_NEAR(seen[i], expected[i], name == std::string("SGD") ? 0.0 : 0x1p-20)
            << layer.name << " with " << name << ", forward " << i;
      }
    }
  }
}

TEST(Case21, AWeightWrittenInsideTheRegionIsSeenAtOnce) {
  const auto x = torch::ones({1, 1});
  const std::vector<std::pair<const char*, std::function<void(const at::Tensor&)>>> writes = {
      {"fill_", [](const at::Tensor& weight) { weight.fill_(2); }},
      {"copy_",
       [](const at::Tensor& weight) {
         weight.copy_(torch::full({1, 1}, 2.0F));
       }},
      {"detach()", [](const at::Tensor& weight) { weight.detach().fill_(2); }},
      {"set_data",
       [](const at::Tensor& weight) {
         weight.set_data(torch::full({1, 1}, 2.0F));
       }},
  };
  for (const auto& [name, write] : writes) {
    for (const auto& layer : layers()) {
      const Autocast region(at::kCPU, at::kBFloat16);
      EXPECT_EQ(layer.forward(x).item<float>(), 1.0F);
      {
        const torch::NoGradGuard no_grad;
        write(layer.weight);
      }
      EXPECT_EQ(layer.forward(x).item<float>(), 2.0F) << layer.name << " by " << name;
    }
  }
}

TEST(Case21, ACastMadeInAnInnerRegionIsNotServedOld) {
  const auto x = torch::ones({1, 1});
  for (const auto& layer : layers()) {
    const Autocast outer(at::kCPU, at::kBFloat16);
    {
      const Autocast inner(at::kCPU, at::kBFloat16);
      EXPECT_EQ(layer.forward(x).item<float>(), 1.0F);
    }
    {
      const torch::NoGradGuard no_grad;
      layer.weight.fill_(5);
    }
    EXPECT_EQ(layer.forward(x).item<float>(), 5.0F) << layer.name;
  }
}

TEST(Case53, EveryLayerRunsInTheDtypeOfTheInnermostRegion) {
  const auto x = torch::ones({1, 1});
  for (const auto& layer : layers()) {
    const Autocast outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(layer.forward(x).scalar_type(), at::kBFloat16) << layer.name;
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(layer.forward(x).scalar_type(), at::kHalf) << layer.name;
    }
    EXPECT_EQ(layer.forward(x).scalar_type(), at::kBFloat16) << layer.name;
  }
}

TEST(Case53, TwoThreadsOfDifferentDtypesShareTheirWeightsInPeace) {
  const auto all = layers();
  std::atomic<int> wrong = 0;
  const auto work = [&](at::ScalarType dtype) {
    const auto x = torch::ones({1, 1});
    for (int round = 0; round < 200; ++round) {
      const Autocast region(at::kCPU, dtype);
      for (const auto& layer : all) {
        for (int use = 0; use < 2; ++use) {
          try {
            wrong += layer.forward(x).scalar_type() == dtype ? 0 : 1;
          } catch (const c10::Error&) {
            ++wrong;
          }
        }
      }
    }
  };
  std::thread other(work, at::kHalf);
  work(at::kBFloat16);
  other.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace torchamp::test
