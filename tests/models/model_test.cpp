#include "models/model.h"

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace torchamp::models {
namespace {

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "nothing was thrown";
}

int64_t num_parameters(const Model& model) {
  int64_t count = 0;
  for (const torch::Tensor& parameter : model.parameters()) {
    count += parameter.numel();
  }
  return count;
}

TEST(Model, HasTheParameterCountOfItsPaper) {
  // mlp: 1024*4096+4096 + 4096*4096+4096 + 4096*10+10; resnet18: torchvision's documentation
  EXPECT_EQ(num_parameters(*make_model("mlp")), 21'020'682);
  EXPECT_EQ(num_parameters(*make_model("resnet18")), 11'689'512);
  // gpt, d = 512: 8192 d + 256 d + 6 (12 d^2 + 13 d) + 2 d + 8192 d
  EXPECT_EQ(num_parameters(*make_model("gpt")), 27'435'008);
}

TEST(Model, NamesEveryKnownModelWhenTheNameIsUnknown) {
  EXPECT_EQ(message_of([] { make_model("vgg"); }),
            "[make_model] There is no model named 'vgg'; mlp, cnn, resnet18, gpt are accepted.");
}

TEST(Model, TakesTheInputThatItsSpecTellsAndReturnsLogits) {
  torch::NoGradGuard no_grad;
  for (const std::string& name : model_names()) {
    std::shared_ptr<Model> model = make_model(name);
    model->eval();
    InputSpec spec = model->input_spec();
    std::vector<int64_t> shape = spec.shape;
    shape.insert(shape.begin(), 2);
    torch::Tensor input =
        spec.is_text ? torch::randint(spec.num_classes, shape) : torch::randn(shape);
    std::vector<int64_t> expected = {2, spec.num_classes};
    if (spec.is_text) {
      expected = {2, spec.shape[0], spec.num_classes};
    }
    EXPECT_EQ(model->forward(input).sizes().vec(), expected) << name;
  }
}

// Standard deviation of n draws of N(0, s): s within 5 s / sqrt(2 n), 5 sigma of its own spread.
void expect_normal(const torch::Tensor& weight, double std, const std::string& name) {
  auto n = static_cast<double>(weight.numel());
  EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * std / std::sqrt(n)) << name;
  EXPECT_NEAR(weight.std().item<double>(), std, 5 * std / std::sqrt(2 * n)) << name;
}

TEST(ResNet18, InitialisesConvolutionsByFanOutAndNormsToIdentity) {
  torch::manual_seed(7);
  std::shared_ptr<Model> model = make_model("resnet18");
  for (const auto& item : model->named_parameters()) {
    const torch::Tensor& p = item.value();
    if (p.dim() == 4) {  // He et al. 2015: sqrt(2 / (out channels * kernel height * kernel width))
      expect_normal(p, std::sqrt(2.0 / static_cast<double>(p.size(0) * p.size(2) * p.size(3))),
                    item.key());
    } else if (item.key() == "fc.weight" || item.key() == "fc.bias") {
      EXPECT_LE(p.abs().max().item<double>(), 1 / std::sqrt(512.0));  // nn.Linear's default
      EXPECT_GE(p.abs().max().item<double>(), 0.9 / std::sqrt(512.0));
    } else {  // BatchNorm
      bool is_weight = item.key().find("weight") != std::string::npos;
      EXPECT_TRUE(p.eq(is_weight ? 1 : 0).all().item<bool>()) << item.key();
    }
  }
}

TEST(Gpt, InitialisesWeightsToStd002BiasesToZeroAndNormsToIdentity) {
  torch::manual_seed(7);
  std::shared_ptr<Model> model = make_model("gpt", {.vocab_size = 512, .num_layers = 2});
  for (const auto& item : model->named_parameters()) {
    if (item.value().dim() == 2) {
      expect_normal(item.value(), 0.02, item.key());
    } else {
      bool is_norm_weight = item.key().find("weight") != std::string::npos;
      EXPECT_TRUE(item.value().eq(is_norm_weight ? 1 : 0).all().item<bool>()) << item.key();
    }
  }
}

TEST(Gpt, SeesNoTokenOfTheFuture) {
  torch::NoGradGuard no_grad;
  std::shared_ptr<Model> model = make_model(
      "gpt", {.vocab_size = 32, .context = 8, .d_model = 16, .num_layers = 2, .num_heads = 2});
  torch::Tensor tokens = torch::arange(8).reshape({1, 8});
  torch::Tensor before = model->forward(tokens);
  tokens[0][5] = 31;
  torch::Tensor after = model->forward(tokens);
  EXPECT_TRUE(before.slice(1, 0, 5).equal(after.slice(1, 0, 5)));
  EXPECT_FALSE(before.slice(1, 5).equal(after.slice(1, 5)));
}

TEST(Model, ReportsAWrongShapeWithWhatCameAndWhatIsAccepted) {
  auto forward = [](const char* name, const torch::Tensor& input) {
    return message_of([&] { make_model(name)->forward(input); });
  };
  EXPECT_EQ(forward("mlp", torch::zeros({2, 784})),
            "[mlp] An input of shape [2, 784] came; [batch, 1024], or images of 1024 values each, "
            "is accepted. Was the model made for other data?");
  EXPECT_EQ(forward("cnn", torch::zeros({2, 3, 28, 28})),
            "[cnn] An input of shape [2, 3, 28, 28] came; [batch, 1, height, width] with height "
            "and width of at least 8 is accepted. Was the model made for other data?");
  EXPECT_EQ(forward("resnet18", torch::zeros({2, 3, 224})),
            "[resnet18] An input of shape [2, 3, 224] came; [batch, 3, height, width] with height "
            "and width of at least 1 is accepted. Was the model made for other data?");
  EXPECT_EQ(forward("gpt", torch::zeros({2, 300}, torch::kLong)),
            "[gpt] An input of shape [2, 300] came; [batch, 1 to 256 tokens] is accepted. Was the "
            "model made with a shorter context?");
}

TEST(Model, ReportsAWrongDtypeWithWhatIsAccepted) {
  EXPECT_EQ(message_of([] {
              make_model("mlp")->forward(torch::zeros({2, 1024}, torch::kLong));
            }),
            "[mlp] An input of dtype Long came; a floating point dtype is accepted.");
  EXPECT_EQ(message_of([] {
              make_model("gpt", {.num_layers = 1})->forward(torch::zeros({2, 8}));
            }),
            "[gpt] An input of dtype Float came; token indices of dtype Long or Int are accepted.");
}

TEST(ModelOptions, OutOfRangeIsReportedWithTheRange) {
  EXPECT_EQ(message_of([] { make_model("cnn", {.num_classes = -1}); }),
            "[cnn] num_classes is -1; 1 to 1073741824 is accepted, or 0 for the default of 10.");
  EXPECT_EQ(message_of([] {
              make_model("mlp", {.hidden = {16, 0}});
            }),
            "[mlp] A hidden layer of width 0 was asked for; 1 or more is accepted.");
  EXPECT_EQ(message_of([] { make_model("gpt", {.d_model = 512, .num_heads = 7}); }),
            "[gpt] d_model is 512 and num_heads is 7; a number of heads that divides d_model is "
            "accepted.");
}

TEST(ModelOptions, FollowTheDataSet) {
  ModelOptions images = options_for({3, 32, 32}, 100, /*is_text=*/false);
  for (const char* name : {"mlp", "cnn", "resnet18"}) {
    torch::Tensor logits = make_model(name, images)->forward(torch::zeros({2, 3, 32, 32}));
    EXPECT_EQ(logits.sizes().vec(), (std::vector<int64_t>{2, 100})) << name;
  }
  ModelOptions text = options_for({16}, 300, /*is_text=*/true);
  torch::Tensor logits = make_model("gpt", text)->forward(torch::zeros({2, 16}, torch::kLong));
  EXPECT_EQ(logits.sizes().vec(), (std::vector<int64_t>{2, 16, 300}));
}

TEST(Model, TakesAnEmptyBatch) {
  torch::NoGradGuard no_grad;
  EXPECT_EQ(make_model("mlp")->forward(torch::zeros({0, 1024})).sizes().vec(),
            (std::vector<int64_t>{0, 10}));
}

}  // namespace
}  // namespace torchamp::models
