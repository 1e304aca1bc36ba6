#include "models/resnet18.h"

#include <cmath>
#include <utility>

#include "models/check.h"

namespace torchamp::models {
namespace {

// He et al. 2015, section 2.2, for ReLU: N(0, sqrt(2 / fan_out)). It replaces the values that
// the constructor of Conv2d drew, as torchvision does, so that one seed gives the same weights.
void init_convolutions(torch::nn::Module& root) {
  torch::NoGradGuard no_grad;
  for (const auto& module : root.modules(/*include_self=*/false)) {
    if (auto* conv = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, /*a=*/0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(padding).bias(false));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(int64_t in_channels, int64_t channels, int64_t stride,
                               torch::nn::Sequential downsample)
    : conv1_(register_module("conv1", conv(in_channels, channels, 3, stride, 1))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(channels))),
      conv2_(register_module("conv2", conv(channels, channels, 3, 1, 1))),
      bn2_(register_module("bn2", torch::nn::BatchNorm2d(channels))),
      downsample_(std::move(downsample)) {
  if (!downsample_.is_empty()) {
    register_module("downsample", downsample_);
  }
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& x) {
  torch::Tensor out = bn1_(conv1_(x)).relu_();
  out = bn2_(conv2_(out));
  out += downsample_.is_empty() ? x : downsample_->forward(x);
  return out.relu_();
}

ResNet18::ResNet18(const ModelOptions& options)
    : Model("resnet18"),
      in_channels_(detail::size_or(options.in_channels, 3, "resnet18", "in_channels")),
      image_size_(detail::size_or(options.image_size, 224, "resnet18", "image_size")),
      num_classes_(detail::size_or(options.num_classes, 1000, "resnet18", "num_classes")),
      conv1_(register_module("conv1", conv(in_channels_, 64, 7, 2, 3))),
      bn1_(register_module("bn1", torch::nn::BatchNorm2d(64))),
      layer1_(register_module("layer1", make_layer(64, 64, 1))),
      layer2_(register_module("layer2", make_layer(64, 128, 2))),
      layer3_(register_module("layer3", make_layer(128, 256, 2))),
      layer4_(register_module("layer4", make_layer(256, 512, 2))),
      fc_(register_module("fc", Linear(512, num_classes_))) {
  init_convolutions(*this);
}

torch::nn::Sequential ResNet18::make_layer(int64_t in_channels, int64_t channels, int64_t stride) {
  torch::nn::Sequential downsample{nullptr};
  if (stride != 1 || in_channels != channels) {
    torch::nn::Conv2d shortcut = conv(in_channels, channels, 1, stride, 0);
    downsample = torch::nn::Sequential(shortcut, torch::nn::BatchNorm2d(channels));
  }
  torch::nn::Sequential layer;
  layer->push_back(BasicBlock(in_channels, channels, stride, downsample));
  layer->push_back(BasicBlock(channels, channels, 1, torch::nn::Sequential{nullptr}));
  return layer;
}

torch::Tensor ResNet18::forward(torch::Tensor input) {
  detail::check_image(input, "resnet18", in_channels_, 1);
  torch::Tensor x = bn1_(conv1_(input)).relu_();
  x = torch::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
  x = layer1_->forward(x);
  x = layer2_->forward(x);
  x = layer3_->forward(x);
  x = layer4_->forward(x);
  x = torch::adaptive_avg_pool2d(x, {1, 1});
  return fc_(torch::flatten(x, 1));
}

InputSpec ResNet18::input_spec() const {
  return {.shape = {in_channels_, image_size_, image_size_},
          .num_classes = num_classes_,
          .is_image = true};
}

}  // namespace torchamp::models
