#include "torchamp/train/memory_layout.h"

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/optim/low_precision.h"

namespace torchamp::train {
namespace {

TEST(MemoryLayout, ChannelsLastMovesTheValuesOfConvolutionsAndNothingElse) {
  torch::nn::Sequential model(torch::nn::Conv2d(2, 3, 2), torch::nn::Linear(4, 5));
  const auto before = model->parameters();
  std::vector<torch::Tensor> values;
  for (const torch::Tensor& parameter : before) values.push_back(parameter.detach().clone());
  to_channels_last(*model);
  const auto after = model->parameters();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(after[i].is_same(before[i])) << i;  // an optimizer made before still holds them
    EXPECT_TRUE(after[i].equal(values[i])) << i;
    EXPECT_TRUE(after[i].requires_grad() && after[i].is_leaf()) << i;
    EXPECT_EQ(after[i].is_contiguous(), after[i].dim() != 4) << i;
  }
  EXPECT_EQ(after[0].strides(), (std::vector<int64_t>{8, 1, 4, 2}));
}

TEST(MemoryLayout, ChannelsLastTakesMastersAlong) {
  torch::nn::Sequential model(torch::nn::Conv2d(2, 3, 2));
  const torch::Tensor weight = model->parameters()[0];
  const torch::Tensor exact = weight.detach().clone();
  optim::to_low_precision(*model, torch::kBFloat16);
  to_channels_last(*model);
  EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
  EXPECT_EQ(weight.strides(), (std::vector<int64_t>{8, 1, 4, 2}));
  EXPECT_TRUE(torch::equal(optim::full_precision(weight), exact));
}

}  // namespace
}  // namespace torchamp::train
