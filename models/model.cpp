#include "models/model.h"

#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "models/cnn.h"
#include "models/gpt.h"
#include "models/mlp.h"
#include "models/resnet18.h"

namespace torchamp::models {
namespace {

using Maker = std::shared_ptr<Model> (*)(const ModelOptions&);

template <class M>
std::shared_ptr<Model> make(const ModelOptions& options) {
  return std::make_shared<M>(options);
}

const std::array<std::pair<const char*, Maker>, 4> kModels = {{
    {"mlp", make<Mlp>},
    {"cnn", make<Cnn>},
    {"resnet18", make<ResNet18>},
    {"gpt", make<Gpt>},
}};

}  // namespace

const std::vector<std::string>& model_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, maker] : kModels) {
      all.emplace_back(name);
    }
    return all;
  }();
  return names;
}

std::shared_ptr<Model> make_model(const std::string& name, const ModelOptions& options) {
  std::string known;
  for (const auto& [candidate, maker] : kModels) {
    if (name == candidate) {
      return maker(options);
    }
    known += (known.empty() ? "" : ", ") + std::string(candidate);
  }
  C10_THROW_ERROR(ValueError, "[make_model] There is no model named '" + name + "'; " + known +
                                  " are accepted.");
}

ModelOptions options_for(const std::vector<int64_t>& input_shape, int64_t num_classes,
                         bool is_text) {
  ModelOptions options;
  if (is_text) {
    TORCH_CHECK_VALUE(input_shape.size() == 1, "[options_for] A text example of shape ",
                      at::IntArrayRef(input_shape), " came; one dimension is accepted.");
    options.vocab_size = num_classes;
    options.context = input_shape[0];
    return options;
  }
  options.num_classes = num_classes;
  options.in_features =
      std::accumulate(input_shape.begin(), input_shape.end(), int64_t{1}, std::multiplies<>());
  if (input_shape.size() == 3) {
    options.in_channels = input_shape[0];
    options.image_size = input_shape[1];
  }
  return options;
}

}  // namespace torchamp::models
