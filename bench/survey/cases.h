#pragma once
// The ops and shapes of the survey.

#include <functional>
#include <string>
#include <vector>

#include <torch/torch.h>

namespace torchamp::bench {

using Tensors = std::vector<torch::Tensor>;

struct Case {
  std::string group;
  std::string name;
  std::function<torch::Tensor(const Tensors&)> function;
  Tensors inputs;  ///< float32, with the strides that the op is to meet
};

/// Products, convolutions, attention and recurrent layers, small to large.
std::vector<Case> survey_cases();

}  // namespace torchamp::bench
