// The models against Python's (tests/golden/make_models_golden.py): names, shapes, values,
// gradients.

#include <cmath>
#include <fstream>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <torch/torch.h>

#include "models/model.h"
#include "support/recipe.h"

namespace torchamp::models {
namespace {

using nlohmann::json;
using torchamp::testing::uniform;

const json& golden() {
  static const json parsed = [] {
    std::ifstream file(TORCHAMP_GOLDEN_DIR "/models.json");
    return json::parse(file);
  }();
  return parsed;
}

double parse_hex(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

// "name [2, 3]" of each tensor, in order.
std::vector<std::string> shapes_of(const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  std::vector<std::string> lines;
  for (const auto& item : tensors) {
    lines.push_back(item.key() + " " + c10::str(item.value().sizes()));
  }
  return lines;
}

std::vector<std::string> shapes_of(const json& tensors) {
  std::vector<std::string> lines;
  for (const json& entry : tensors) {
    auto shape = entry[1].get<std::vector<int64_t>>();
    lines.push_back(entry[0].get<std::string>() + " " + c10::str(at::IntArrayRef(shape)));
  }
  return lines;
}

// Both sides compute in float64 but in another order: sums of at most 5000 terms, 20 layers deep,
// each off by less than 5000 * 2^-53 of the largest term, so 1e-9 leaves a factor of 100.
constexpr double kTolerance = 1e-9;

void expect_near(const torch::Tensor& actual, const json& expected, const char* what) {
  torch::Tensor flat = actual.detach().flatten().contiguous();
  ASSERT_EQ(flat.numel(), static_cast<int64_t>(expected.size())) << what;
  double largest = flat.abs().max().item<double>();
  for (int64_t i = 0; i < flat.numel(); ++i) {
    ASSERT_NEAR(flat[i].item<double>(), parse_hex(expected[i]), kTolerance * largest)
        << what << ", element " << i;
  }
}

struct Case {
  std::string name;
  ModelOptions options;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

std::vector<Case> cases() {
  std::vector<Case> all(4);
  all[0] = {"mlp", {.hidden = {16, 16}, .in_features = 12}};
  all[1] = {"cnn", {.in_channels = 3}};
  all[2] = {"resnet18", {.num_classes = 10}};
  all[3] = {"gpt",
            {.vocab_size = 64, .context = 16, .d_model = 32, .num_layers = 2, .num_heads = 4}};
  return all;
}

class ModelGolden : public ::testing::TestWithParam<Case> {};

TEST_P(ModelGolden, HasPythonsNamesAndShapesInPythonsOrder) {
  std::shared_ptr<Model> model = make_model(GetParam().name, GetParam().options);
  const json& expected = golden()[GetParam().name];
  EXPECT_EQ(shapes_of(model->named_parameters()), shapes_of(expected["parameters"]));
  EXPECT_EQ(shapes_of(model->named_buffers()), shapes_of(expected["buffers"]));
}

TEST_P(ModelGolden, ComputesPythonsLogitsGradientsAndRunningStatistics) {
  std::shared_ptr<Model> model = make_model(GetParam().name, GetParam().options);
  const json& expected = golden()[GetParam().name];
  torchamp::testing::fill_parameters(*model);
  torchamp::testing::fill_buffers(*model);
  model->to(torch::kDouble);
  auto shape = expected["input_shape"].get<std::vector<int64_t>>();
  torch::Tensor input;
  if (model->input_spec().is_text) {
    input = (torchamp::testing::integers(1, shape[0] * shape[1]) % 64).reshape(shape);
  } else {
    input = uniform(1, shape).to(torch::kDouble);
  }

  model->eval();
  {
    torch::NoGradGuard no_grad;
    expect_near(model->forward(input), expected["logits_eval"], "logits in evaluation");
  }
  model->train();
  torch::Tensor logits = model->forward(input);
  expect_near(logits, expected["logits_train"], "logits in training");

  (logits * uniform(2, logits.sizes()).to(torch::kDouble)).sum().backward();
  size_t index = 0;
  for (const auto& item : model->named_parameters()) {
    double want = parse_hex(expected["gradient_abs_sum"][index++]);
    EXPECT_NEAR(item.value().grad().abs().sum().item<double>(), want, kTolerance * want)
        << "gradient of " << item.key();
  }
  index = 0;
  for (const auto& item : model->named_buffers()) {
    double want = parse_hex(expected["buffer_sum"][index++]);
    EXPECT_NEAR(item.value().to(torch::kDouble).sum().item<double>(), want,
                kTolerance * (1 + std::abs(want)))
        << item.key();
  }
}

INSTANTIATE_TEST_SUITE_P(Every, ModelGolden, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(ResNet18, HasTorchvisionsNamesAndShapesAt1000Classes) {
  std::shared_ptr<Model> model = make_model("resnet18");
  const json& expected = golden()["resnet18_1000"];
  EXPECT_EQ(shapes_of(model->named_parameters()), shapes_of(expected["parameters"]));
  EXPECT_EQ(shapes_of(model->named_buffers()), shapes_of(expected["buffers"]));
}

TEST(ResNet18, DrawsTorchvisionsInitialWeightsFromTheSameSeed) {
  torch::manual_seed(0);
  std::shared_ptr<Model> model = make_model("resnet18");
  const json& expected = golden()["resnet18_1000"]["seed_0"];
  size_t index = 0;
  for (const auto& item : model->named_parameters()) {
    torch::Tensor first = item.value().detach().flatten().slice(0, 0, 4);
    for (int64_t i = 0; i < first.numel(); ++i) {
      // the vector and the scalar path of normal_ differ by a few ulps of float32
      double want = parse_hex(expected[index][i]);
      EXPECT_NEAR(first[i].item<double>(), want, 16 * 0x1p-24 * std::abs(want) + 1e-12)
          << item.key() << ", element " << i;
    }
    ++index;
  }
}

}  // namespace
}  // namespace torchamp::models
