// 200 steps of training in bf16 and in fp16 against Python PyTorch's (low_precision_<version>.json,
// written by make_low_precision_golden.py): the same bits in every loss and in the final weights,
// where the machine is the one that wrote the file. tests/models/training_test.cpp has the bound
// that holds on other machines.

#include <cstdlib>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "models/model.h"
#include "support/fingerprint.h"
#include "support/golden.h"
#include "support/op_call.h"
#include "support/recipe.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/sgd.h"

namespace torchamp::testing {
namespace {

using nlohmann::json;

constexpr int64_t kSteps = 200;
constexpr int64_t kClasses = 10;
constexpr int64_t kVocabulary = 64;
constexpr int64_t kContext = 16;

struct TrainingRun {
  const char* model;
  const char* optimizer;
  const char* precision;
};
void PrintTo(const TrainingRun& run, std::ostream* out) {
  *out << run.model << " with " << run.optimizer << " in " << run.precision;
}

std::shared_ptr<models::Model> make_model(const std::string& name) {
  if (name == "mlp") {
    return models::make_model(name, {.hidden = {128, 128}, .in_features = 64});
  }
  if (name == "gpt") {
    return models::make_model(name, {.vocab_size = kVocabulary,
                                     .context = kContext,
                                     .d_model = 32,
                                     .num_layers = 2,
                                     .num_heads = 4});
  }
  return models::make_model(name, {.num_classes = kClasses});
}

struct Data {
  int64_t batch;
  at::Tensor inputs;
  at::Tensor target;
};

Data make_data(const std::string& name) {
  if (name == "gpt") {
    const int64_t count = kSteps * 8;
    const at::Tensor start = integers(10, count) % kVocabulary;
    const at::Tensor step = integers(11, count) % 4 + 1;
    const at::Tensor tokens =
        (start.unsqueeze(1) + step.unsqueeze(1) * torch::arange(kContext + 1)) % kVocabulary;
    return {8, tokens.slice(1, 0, kContext), tokens.slice(1, 1)};
  }
  const int64_t batch = name == "mlp" ? 16 : name == "cnn" ? 8 : 1;
  std::vector<int64_t> shape = name == "mlp"   ? std::vector<int64_t>{64}
                               : name == "cnn" ? std::vector<int64_t>{1, 16, 16}
                                               : std::vector<int64_t>{3, 33, 33};
  const at::Tensor target = integers(10, kSteps * batch) % kClasses;
  shape.insert(shape.begin(), kClasses);
  const at::Tensor pattern = uniform(11, shape);
  shape[0] = kSteps * batch;
  return {batch, pattern.index_select(0, target) / 2 + uniform(12, shape), target};
}

// The fused optimizers, through the scaler's one-pass step; LibTorch's own SGD for cnn, so that the
// step of a plain optimizer is shown too.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainingRun& run,
                                                        std::vector<at::Tensor> parameters,
                                                        double learning_rate) {
  if (std::string(run.optimizer) == "adamw") {
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions(learning_rate).weight_decay(0.01));
  }
  const auto options = torch::optim::SGDOptions(learning_rate).momentum(0.9);
  if (std::string(run.model) == "cnn") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), options);
  }
  return std::make_unique<optim::SGD>(std::move(parameters), options);
}

json train(const TrainingRun& run, double learning_rate, const json& scaler_options) {
  const auto model = make_model(run.model);
  fill_parameters(*model);
  const Data data = make_data(run.model);
  const auto optimizer = make_optimizer(run, model->parameters(), learning_rate);
  amp::GradScaler scaler({.init_scale = scaler_options["init_scale"],
                          .growth_interval = scaler_options["growth_interval"],
                          .enabled = std::string(run.precision) == "float16"});
  json losses = json::array();
  json skipped = json::array();
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto rows = [&](const at::Tensor& all) {
      return all.slice(0, step * data.batch, (step + 1) * data.batch);
    };
    optimizer->zero_grad();
    at::Tensor loss;
    {
      const amp::Autocast region(at::kCPU, dtype_of(run.precision));
      const at::Tensor logits = model->forward(rows(data.inputs).clone());
      loss = torch::cross_entropy_loss(logits.flatten(0, -2), rows(data.target).flatten());
    }
    scaler.scale(loss).backward();
    if (scaler.step(*optimizer).skipped()) {
      skipped.push_back(step);
    }
    scaler.update();
    losses.push_back(loss.item<double>());
  }
  std::vector<at::Tensor> state = model->parameters();
  for (const at::Tensor& buffer : model->buffers()) {
    state.push_back(buffer);
  }
  return {{"losses", losses},
          {"skipped", skipped},
          {"scale", scaler.get_scale()},
          {"final_weights", fnv1a(state)}};
}

class LowPrecisionTraining : public ::testing::TestWithParam<TrainingRun> {};

TEST_P(LowPrecisionTraining, HasPythonsBits) {
  const auto golden = read_golden("low_precision_" TORCH_VERSION ".json");
  if (!golden) {
    GTEST_SKIP() << "low_precision_" TORCH_VERSION ".json is not there: Python PyTorch of this "
                 << "version writes it: tests/golden/make_low_precision_golden.py FOLDER.";
  }
  at::set_num_threads((*golden)["fingerprint"]["threads"].get<int>());
  const std::string difference = fingerprint_difference((*golden)["fingerprint"], fingerprint());
  if (!difference.empty()) {
    ASSERT_EQ(std::getenv("TORCHAMP_GOLDEN"), nullptr)
        << "Python has just run here, with other libraries: " << difference;
    GTEST_SKIP() << "Bits are equal on the machine that wrote the file only: " << difference;
  }
  const TrainingRun& run = GetParam();
  for (const json& expected : (*golden)["runs"]) {
    if (expected["model"] != run.model || expected["optimizer"] != run.optimizer ||
        expected["precision"] != run.precision) {
      continue;
    }
    const json actual = train(run, expected["learning_rate"], (*golden)["scaler"]);
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto text = expected["losses"][step].get<std::string>();
      ASSERT_EQ(actual["losses"][step].get<double>(), std::strtod(text.c_str(), nullptr))
          << "the first loss that differs is that of step " << step;
    }
    EXPECT_EQ(actual["final_weights"], expected["final_weights"]);
    EXPECT_EQ(actual["skipped"], expected["skipped"]);
    EXPECT_EQ(actual["scale"], expected["scale"]);
    return;
  }
  FAIL() << "The file has no such run.";
}

INSTANTIATE_TEST_SUITE_P(
    Of, LowPrecisionTraining,
    ::testing::Values(
        TrainingRun{"mlp", "sgd", "bfloat16"}, TrainingRun{"mlp", "sgd", "float16"},
        TrainingRun{"mlp", "adamw", "bfloat16"}, TrainingRun{"mlp", "adamw", "float16"},
        TrainingRun{"cnn", "sgd", "bfloat16"}, TrainingRun{"cnn", "sgd", "float16"},
        TrainingRun{"resnet18", "sgd", "bfloat16"}, TrainingRun{"resnet18", "sgd", "float16"},
        TrainingRun{"gpt", "sgd", "bfloat16"}, TrainingRun{"gpt", "sgd", "float16"},
        TrainingRun{"gpt", "adamw", "bfloat16"}, TrainingRun{"gpt", "adamw", "float16"}),
    [](const auto& info) {
      return std::string(info.param.model) + "_" + info.param.optimizer + "_" +
             info.param.precision;
    });

}  // namespace
}  // namespace torchamp::testing
