#include "models/cnn.h"

#include "models/check.h"

namespace torchamp::models {
namespace {

constexpr int64_t kChannels1 = 16;
constexpr int64_t kChannels2 = 24;
constexpr int64_t kChannels3 = 48;
constexpr int64_t kGrid = 3;      // 28x28 ends as 3x3; other sizes are averaged to it
constexpr int64_t kSmallest = 8;  // three halvings leave one pixel

torch::nn::Conv2d conv3x3(int64_t in, int64_t out) {  // BatchNorm subtracts the mean: no bias
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
}

torch::Tensor block(const torch::Tensor& x, torch::nn::Conv2d& conv, torch::nn::BatchNorm2d& bn) {
  return torch::max_pool2d(torch::relu(bn(conv(x))), 2);
}

}  // namespace

Cnn::Cnn(const ModelOptions& options)
    : Model("cnn"),
      in_channels_(detail::size_or(options.in_channels, 1, "cnn", "in_channels")),
      image_size_(detail::size_or(options.image_size, 28, "cnn", "image_size")),
      num_classes_(detail::size_or(options.num_classes, 10, "cnn", "num_classes")),
      conv1_(register_module("conv1", conv3x3(in_channels_, kChannels1))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(kChannels1))),
      conv2_(register_module("conv2", conv3x3(kChannels1, kChannels2))),
      bn2_(register_module("bn2", torch::nn::BatchNorm2d(kChannels2))),
      conv3_(register_module("conv3", conv3x3(kChannels2, kChannels3))),
      bn3_(register_module("bn3", torch::nn::BatchNorm2d(kChannels3))),
      fc_(register_module("fc", Linear(kChannels3 * kGrid * kGrid, num_classes_))) {}

torch::Tensor Cnn::forward(torch::Tensor input) {
  detail::check_image(input, "cnn", in_channels_, kSmallest);
  torch::Tensor x = block(input, conv1_, bn1_);
  x = block(x, conv2_, bn2_);
  x = block(x, conv3_, bn3_);
  return fc_(torch::flatten(torch::adaptive_avg_pool2d(x, {kGrid, kGrid}), 1));
}

InputSpec Cnn::input_spec() const {
  return {.shape = {in_channels_, image_size_, image_size_},
          .num_classes = num_classes_,
          .is_image = true};
}

}  // namespace torchamp::models
