#pragma once
// ResNet-18 of He et al. 2016, "Deep Residual Learning for Image Recognition", table 1, with
// torchvision's names, shapes and initialisation, so that its state_dict fits both ways.

#include "models/model.h"

namespace torchamp::models {

/// Two 3x3 convolutions with BatchNorm beside a shortcut: relu(f(x) + x).
class BasicBlockImpl : public torch::nn::Module {
 public:
  /// `downsample` is the 1x1 convolution and BatchNorm of a shortcut that changes shape, or empty.
  BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride,
                 torch::nn::Sequential downsample);

  torch::Tensor forward(const torch::Tensor& x);

 private:
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Conv2d conv2_;
  torch::nn::BatchNorm2d bn2_;
  torch::nn::Sequential downsample_;
};
TORCH_MODULE(BasicBlock);

/// 3x224x224 and 1000 classes by default: 11,689,512 parameters. Any other height and width works
/// as well, since the mean over the image comes before the last layer.
class ResNet18 : public Model {
 public:
  explicit ResNet18(const ModelOptions& options = {});

  torch::Tensor forward(torch::Tensor input) override;
  InputSpec input_spec() const override;

 private:
  torch::nn::Sequential make_layer(int64_t in_channels, int64_t channels, int64_t stride);

  int64_t in_channels_;
  int64_t image_size_;
  int64_t num_classes_;
  torch::nn::Conv2d conv1_;
  torch::nn::BatchNorm2d bn1_;
  torch::nn::Sequential layer1_, layer2_, layer3_, layer4_;
  Linear fc_;
};

}  // namespace torchamp::models
