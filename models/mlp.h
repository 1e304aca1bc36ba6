#pragma once
// A multilayer perceptron: Linear, ReLU, ..., Linear. Layers are named fc1, fc2, ...

#include <vector>

#include "models/model.h"

namespace torchamp::models {

/// 1024-4096-4096-10 by default. Takes [B, in_features], or images, which it flattens.
class Mlp : public Model {
 public:
  explicit Mlp(const ModelOptions& options = {});

  torch::Tensor forward(torch::Tensor input) override;
  InputSpec input_spec() const override;

 private:
  int64_t in_features_;
  int64_t num_classes_;
  std::vector<Linear> layers_;
};

}  // namespace torchamp::models
