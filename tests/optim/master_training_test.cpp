// Training with 16-bit weights and masters gives the losses and weights of float32 weights under
// Autocast, bit for bit: the oracle is the same loop without to_low_precision().

#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "amp/support.h"
#include "models/model.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/clip_grad_norm.h"
#include "torchamp/optim/lamb.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/optim/sgd.h"

namespace torchamp::optim {
namespace {

using torch::kBFloat16;
using torch::kFloat;

enum class Clip { kNone, kInStep, kByFunction };

struct Plan {
  const char* model;
  const char* optimizer;
  int steps;
  int passes = 1;  // backward passes a step
  Clip clip = Clip::kNone;
  bool scales = false;
};

std::string name_of(const Plan& plan) {
  const char* clip[] = {"", "_clipped", "_clipped_by_function"};
  return std::string(plan.model) + "_" + plan.optimizer + "_" + std::to_string(plan.steps) +
         "_steps_of_" + std::to_string(plan.passes) + clip[static_cast<int>(plan.clip)] +
         (plan.scales ? "_scaled" : "");
}

void PrintTo(const Plan& plan, std::ostream* out) { *out << name_of(plan); }

constexpr double kMaxNorm = 0.5;  // below the norms of these models, so that each step is clipped

struct Data {
  std::shared_ptr<models::Model> model;
  at::Tensor inputs;   // [steps * passes, B, ...]
  at::Tensor targets;  // [steps * passes, B] or [steps * passes, B, T]
};

Data make_data(const Plan& plan) {
  models::ModelOptions options;
  int64_t batch = 4;
  const std::string name = plan.model;
  if (name == "mlp") options = {.hidden = {40, 40}, .in_features = 24};
  if (name == "cnn") options = {.in_channels = 1, .image_size = 8};
  if (name == "resnet18") {
    options = {.num_classes = 10, .image_size = 32};
    batch = 2;
  }
  if (name == "gpt") {
    options = {.vocab_size = 40, .context = 8, .d_model = 32, .num_layers = 2, .num_heads = 4};
    batch = 2;
  }
  torch::manual_seed(5);
  Data data{models::make_model(name, options), {}, {}};
  const models::InputSpec spec = data.model->input_spec();
  std::vector<int64_t> shape = {int64_t{plan.steps} * plan.passes, batch};
  data.targets = torch::randint(spec.num_classes, shape);
  shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
  if (spec.is_text) {
    data.inputs = torch::randint(spec.num_classes, shape);
    data.targets = data.inputs.roll({-1}, {2});
  } else {
    data.inputs = torch::randn(shape);
  }
  return data;
}

// AdamW of Loshchilov and Hutter by LibTorch's ops on exact weights: knows nothing of kernels.
class PlainAdamW : public torch::optim::AdamW {
 public:
  using torch::optim::AdamW::AdamW;
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    const auto& parameters = param_groups()[0].params();
    m_.resize(parameters.size());
    v_.resize(parameters.size());
    ++step_;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor gradient = main_grad(parameters[i]);
      if (!m_[i].defined()) m_[i] = torch::zeros_like(gradient);
      if (!v_[i].defined()) v_[i] = torch::zeros_like(gradient);
      m_[i].mul_(0.9).add_(gradient, 0.1);
      v_[i].mul_(0.999).addcmul_(gradient, gradient, 0.001);
      const at::Tensor root = (v_[i] / (1 - std::pow(0.999, step_))).sqrt_().add_(1e-8);
      const at::Tensor weight = full_precision(parameters[i]) * (1 - 1e-5);
      weight.addcdiv_(m_[i] / (1 - std::pow(0.9, step_)), root, -1e-3);
      set_full_precision(parameters[i], weight);
    }
    return {};
  }

 private:
  std::vector<at::Tensor> m_;
  std::vector<at::Tensor> v_;
  int step_ = 0;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Plan& plan,
                                                        std::vector<at::Tensor> parameters) {
  FusedOptions fused;
  if (plan.clip == Clip::kInStep) fused.max_grad_norm = kMaxNorm;
  const std::string name = plan.optimizer;
  if (name == "PlainAdamW") return std::make_unique<PlainAdamW>(std::move(parameters));
  if (name == "SGD") {
    return std::make_unique<SGD>(std::move(parameters),
                                 SGDOptions(0.01).momentum(0.9).weight_decay(1e-4), fused);
  }
  if (name == "Adam") {
    return std::make_unique<Adam>(std::move(parameters), AdamOptions(1e-3).amsgrad(true), fused);
  }
  if (name == "LAMB") {
    return std::make_unique<LAMB>(std::move(parameters), LAMBOptions(1e-3), fused);
  }
  return std::make_unique<AdamW>(std::move(parameters), AdamWOptions(1e-3), fused);
}

struct Trajectory {
  std::vector<float> losses;
  std::vector<at::Tensor> weights;
};

Trajectory train(const Plan& plan, bool has_masters) {
  const Data data = make_data(plan);
  const std::vector<at::Tensor> parameters = data.model->parameters();
  if (has_masters) {
    EXPECT_FALSE(to_low_precision(*data.model, kBFloat16).empty());
  }
  const auto optimizer = make_optimizer(plan, parameters);
  amp::GradScaler scaler({.init_scale = 1024, .enabled = plan.scales});
  Trajectory result;
  for (int64_t i = 0; i < data.inputs.size(0); ++i) {
    if (i % plan.passes == 0) data.model->zero_grad();
    at::Tensor loss;
    {
      amp::Autocast region(torch::kCPU, kBFloat16);
      const at::Tensor logits = data.model->forward(data.inputs[i]);
      loss = torch::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}),
                                       data.targets[i].reshape({-1}));
    }
    scaler.scale(loss / plan.passes).backward();
    result.losses.push_back(loss.item<float>());
    if ((i + 1) % plan.passes != 0) continue;
    if (plan.clip == Clip::kByFunction) {
      scaler.unscale_(*optimizer);
      result.losses.push_back(clip_grad_norm_(parameters, kMaxNorm).item<float>());
    }
    scaler.step(*optimizer);
    scaler.update();
  }
  for (const at::Tensor& parameter : parameters) {
    result.weights.push_back(full_precision(parameter));
  }
  return result;
}

void expect_same(const Plan& plan) {
  const test::Warnings warnings;  // that bfloat16 needs no scale
  const Trajectory actual = train(plan, true);
  const Trajectory expected = train(plan, false);
  ASSERT_EQ(actual.losses.size(), expected.losses.size());
  for (size_t i = 0; i < actual.losses.size(); ++i) {
    ASSERT_EQ(actual.losses[i], expected.losses[i]) << "the first number that differs is " << i;
  }
  for (size_t i = 0; i < actual.weights.size(); ++i) {
    EXPECT_TRUE(torch::equal(actual.weights[i], expected.weights[i])) << i;
  }
}

class MasterTraining : public ::testing::TestWithParam<Plan> {};

TEST_P(MasterTraining, HasTheBitsOfFloat32WeightsUnderAutocast) { expect_same(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Every, MasterTraining,
    ::testing::Values(Plan{"mlp", "PlainAdamW", 200}, Plan{"cnn", "PlainAdamW", 20},
                      Plan{"gpt", "PlainAdamW", 20, 2}, Plan{"mlp", "AdamW", 200},
                      Plan{"mlp", "AdamW", 60, 3, Clip::kInStep},
                      Plan{"mlp", "AdamW", 60, 1, Clip::kByFunction, true},
                      Plan{"mlp", "AdamW", 60, 2, Clip::kInStep, true},
                      Plan{"mlp", "Adam", 60, 2, Clip::kByFunction},
                      Plan{"mlp", "LAMB", 60, 2, Clip::kInStep}, Plan{"mlp", "SGD", 200},
                      Plan{"cnn", "AdamW", 200, 1, Clip::kInStep},
                      Plan{"cnn", "SGD", 40, 2, Clip::kByFunction},
                      Plan{"gpt", "AdamW", 200, 1, Clip::kInStep},
                      Plan{"gpt", "SGD", 30, 2, Clip::kByFunction},
                      Plan{"resnet18", "AdamW", 3, 2, Clip::kInStep}),
    [](const auto& info) { return name_of(info.param); });

TEST(MasterTrainingSlow, Resnet18HasTheBitsOver200Steps) {
  if (std::getenv("TORCHAMP_SLOW_TESTS") == nullptr) {
    GTEST_SKIP() << "Takes minutes; master_weights.Slow runs it.";
  }
  expect_same({"resnet18", "AdamW", 200, 1, Clip::kInStep});
}

// ---- reported faults ----

// A module with one bfloat16 weight, and a gradient that the test sets.
struct OneWeight : torch::nn::Module {
  OneWeight() { weight = register_parameter("weight", torch::ones({1}, kBFloat16)); }
  template <typename Optimizer>
  void step(Optimizer& optimizer, float gradient, int times = 1) {
    for (int i = 0; i < times; ++i) {
      weight.mutable_grad() = torch::full({1}, gradient, kBFloat16);
      optimizer.step();
    }
  }
  float exact() const { return full_precision(weight).item<float>(); }
  float rounded() const { return weight.item<float>(); }
  at::Tensor weight;
};

TEST(MasterCases, Case41SmallUpdatesAreNotLost) {
  OneWeight a;
  SGD sgd(a.parameters(), SGDOptions(1e-3));
  a.step(sgd, 1.0F, 1000);
  EXPECT_NEAR(a.exact(), 9.32e-06F, 0.005e-06F);
  EXPECT_EQ(a.rounded(), torch::tensor(a.exact()).to(kBFloat16).item<float>());
  EXPECT_NEAR(a.rounded(), 9.30e-06F, 0.005e-06F);

  OneWeight b;
  AdamW adamw(b.parameters(), AdamWOptions(6e-4).weight_decay(0.1));
  b.step(adamw, 1.0F, 100);
  EXPECT_NEAR(b.exact(), 0.934196F, 0.5e-6F);
  EXPECT_EQ(b.rounded(), 0.93359375F);

  OneWeight c;  // what goes wrong without masters
  SGD plain(c.parameters(), SGDOptions(1e-3),
            {.low_precision_weights = LowPrecisionWeights::kPlain});
  c.step(plain, 1.0F, 1000);
  EXPECT_EQ(c.rounded(), 1.0F);
}

TEST(MasterCases, Case43AWeightThatIsLoadedReplacesTheMaster) {
  OneWeight a;
  SGD sgd(a.parameters(), SGDOptions(0.25));
  a.step(sgd, 0.0F);
  {
    const torch::NoGradGuard no_grad;
    a.weight.fill_(0.5);
  }
  a.step(sgd, 0.0F);
  EXPECT_EQ(a.rounded(), 0.5F);
  EXPECT_EQ(a.exact(), 0.5F);
}

TEST(MasterCases, Case43MastersAreInTheCheckpoint) {
  OneWeight a;
  SGD first(a.parameters(), SGDOptions(1e-3));
  a.step(first, 1.0F, 5);
  OneWeight b;
  to_low_precision(b, kBFloat16, {.also = {"weight"}});
  load_full_state_dict(b, full_state_dict(a));
  SGD second(b.parameters(), SGDOptions(1e-3));
  b.step(second, 1.0F, 5);
  a.step(first, 1.0F, 5);
  EXPECT_EQ(b.exact(), a.exact());
  EXPECT_EQ(b.exact(), 0.99000013F);
  EXPECT_EQ(b.rounded(), 0.98828125F);
}

TEST(MasterCases, OptimizersAndGroupsMadeBeforeAConversionFollowIt) {
  torch::manual_seed(8);
  torch::nn::Linear early(6, 4);
  torch::nn::Linear reference(6, 4);
  load_full_state_dict(*reference, full_state_dict(*early));
  const at::Tensor input = torch::randn({5, 6});
  const auto run = [&](torch::nn::Linear& linear, bool converts) {
    AdamW optimizer(std::vector<at::Tensor>{linear->weight}, AdamWOptions(1e-2));
    for (int step = 0; step < 12; ++step) {
      if (step == 4 && converts) to_low_precision(*linear, kBFloat16);
      if (step == 6) optimizer.add_param_group(torch::optim::OptimizerParamGroup({linear->bias}));
      if (step == 9 && converts) to_full_precision(*linear);
      linear->zero_grad();
      {
        amp::Autocast region(torch::kCPU, kBFloat16);
        linear(input).to(kFloat).square().sum().backward();
      }
      optimizer.step();
    }
    return full_precision(linear->weight);
  };
  EXPECT_TRUE(torch::equal(run(early, true), run(reference, false)));
  EXPECT_TRUE(torch::equal(early->bias, reference->bias));
}

}  // namespace
}  // namespace torchamp::optim
