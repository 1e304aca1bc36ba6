#include "models/model.h"

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

}  // namespace
}  // namespace torchamp::models
