#include "models/mlp.h"

#include <string>

#include "models/check.h"

namespace torchamp::models {

Mlp::Mlp(const ModelOptions& options)
    : Model("mlp"),
      in_features_(detail::size_or(options.in_features, 1024, "mlp", "in_features")),
      num_classes_(detail::size_or(options.num_classes, 10, "mlp", "num_classes")) {
  std::vector<int64_t> widths =
      options.hidden.empty() ? std::vector<int64_t>{4096, 4096} : options.hidden;
  for (int64_t width : widths) {
    TORCH_CHECK_VALUE(width > 0, "[mlp] A hidden layer of width ", width,
                      " was asked for; 1 or more is accepted.");
  }
  widths.push_back(num_classes_);
  int64_t in = in_features_;
  for (int64_t width : widths) {
    std::string name = "fc" + std::to_string(layers_.size() + 1);
    layers_.emplace_back(register_module(name, Linear(in, width)));
    in = width;
  }
}

torch::Tensor Mlp::forward(torch::Tensor input) {
  TORCH_CHECK_VALUE(input.dim() >= 2 && input.numel() == input.size(0) * in_features_,
                    "[mlp] An input of shape ", input.sizes(), " came; [batch, ", in_features_,
                    "], or images of ", in_features_,
                    " values each, is accepted. Was the model made for other data?");
  detail::check_floating(input, "mlp");
  torch::Tensor x = input.dim() == 2 ? input : input.flatten(1);
  for (size_t i = 0; i < layers_.size(); ++i) {
    x = layers_[i](x);
    if (i + 1 < layers_.size()) {
      x = torch::relu(x);
    }
  }
  return x;
}

InputSpec Mlp::input_spec() const { return {.shape = {in_features_}, .num_classes = num_classes_}; }

}  // namespace torchamp::models
