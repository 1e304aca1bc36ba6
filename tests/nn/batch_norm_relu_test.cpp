// BatchNormReLU2d against LibTorch's layers one after the other, in float64 and in its own dtype.

#include "torchamp/nn/batch_norm_relu.h"

#include <sstream>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

namespace torchamp::nn {
namespace {

using torch::Tensor;

const torch::ScalarType kDtypes[] = {torch::kFloat, torch::kBFloat16, torch::kHalf};

Tensor image(torch::ScalarType dtype, at::IntArrayRef sizes = {4, 16, 20, 20}) {
  return torch::randn(sizes).to(dtype).contiguous(torch::MemoryFormat::ChannelsLast);
}

struct Case {
  torch::ScalarType dtype = torch::kFloat;
  torch::ScalarType parameters = torch::kFloat;
  bool has_residual = false;
  bool training = true;
  torch::nn::BatchNormOptions options = torch::nn::BatchNormOptions(16);
};

// y, gradients of x, residual, weight and bias, then the running statistics.
template <typename Layer, typename Forward>
std::vector<Tensor> run(Layer layer, const Case& c, torch::ScalarType dtype,
                        torch::ScalarType parameters, const Forward& forward) {
  torch::manual_seed(4);
  layer->train(c.training);
  const Tensor x = (image(c.dtype) * 2 + 0.5).to(dtype).requires_grad_();
  const Tensor residual = image(c.dtype).to(dtype).requires_grad_();
  const Tensor seed = image(c.dtype).to(dtype);
  if (layer->weight.defined()) {
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::rand(16) + 0.5);
    layer->bias.copy_(torch::randn(16));
  }
  if (layer->running_mean.defined()) {
    layer->running_mean.copy_(torch::randn(16) * 0.1);
    layer->running_var.copy_(torch::rand(16) + 0.5);
  }
  layer->to(c.parameters);  // so that all compute with the same numbers
  layer->to(parameters);
  const Tensor y = forward(layer, x, c.has_residual ? residual : Tensor());
  EXPECT_EQ(y.scalar_type(), dtype);
  y.backward(seed);
  std::vector<Tensor> out = {y.detach(), x.grad(), residual.grad()};
  out.push_back(layer->weight.defined() ? layer->weight.grad() : Tensor());
  out.push_back(layer->bias.defined() ? layer->bias.grad() : Tensor());
  out.push_back(layer->running_mean);
  out.push_back(layer->running_var);
  if (layer->num_batches_tracked.defined()) out.push_back(layer->num_batches_tracked);
  return out;
}

std::vector<Tensor> fused(const Case& c) {
  return run(BatchNormReLU2d(c.options), c, c.dtype, c.parameters,
             [](auto& layer, const Tensor& x, const Tensor& residual) {
               const Tensor y = layer->forward(x, residual);
               EXPECT_NE(y.grad_fn()->name().find("FusedNorm"), std::string::npos);
               return y;
             });
}

std::vector<Tensor> separate(const Case& c, torch::ScalarType dtype, torch::ScalarType parameters) {
  return run(torch::nn::BatchNorm2d(c.options), c, dtype, parameters,
             [](auto& layer, const Tensor& x, const Tensor& residual) {
               Tensor y = layer->forward(x);
               if (residual.defined()) y = y + residual;
               return torch::relu(y);
             });
}

double error(const Tensor& got, const Tensor& exact) {
  return (got.to(torch::kDouble) - exact).norm().item<double>();
}

// Against float64, an error no larger than that of LibTorch's layers, which round more often.
void check(const Case& c) {
  const auto ours = fused(c);
  const auto libtorch = separate(c, c.dtype, c.parameters);
  const auto exact = separate(c, torch::kDouble, torch::kDouble);
  ASSERT_EQ(ours.size(), exact.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].defined(), exact[i].defined()) << i;
    if (!ours[i].defined()) continue;
    EXPECT_EQ(ours[i].scalar_type(), libtorch[i].scalar_type()) << i;
    const Tensor want = exact[i].to(torch::kDouble);
    const double unit = ours[i].scalar_type() == torch::kBFloat16 ? 0x1p-9
                        : ours[i].scalar_type() == torch::kHalf   ? 0x1p-12
                                                                  : 0x1p-22;
    EXPECT_LE(error(ours[i], want),
              1.1 * error(libtorch[i], want) + unit * want.norm().item<double>())
        << i << ": LibTorch errs by " << error(libtorch[i], want);
  }
}

TEST(BatchNormReLU2d, IsAtLeastAsExactAsSeparateLayers) {
  for (const auto dtype : kDtypes) {
    for (const auto parameters : {torch::kFloat, dtype}) {
      for (const bool has_residual : {false, true}) {
        for (const bool training : {true, false}) {
          SCOPED_TRACE(std::string(toString(dtype)) + " " + toString(parameters) +
                       (has_residual ? " residual" : "") + (training ? " training" : " eval"));
          check({dtype, parameters, has_residual, training});
        }
      }
    }
  }
}

TEST(BatchNormReLU2d, HearsEveryOption) {
  Case c;
  for (const bool training : {true, false}) {
    c.training = training;
    c.options = torch::nn::BatchNormOptions(16).affine(false);
    check(c);
    c.options = torch::nn::BatchNormOptions(16).track_running_stats(false);
    check(c);
    c.options = torch::nn::BatchNormOptions(16).momentum(std::nullopt).eps(0.3);
    check(c);
    c.options = torch::nn::BatchNormOptions(16).momentum(0.8);
    check(c);
  }
}

// A kernel takes 16384 numbers or more, dense and with channels side by side.
TEST(BatchNormReLU2d, OtherTensorsGoThroughLibTorchsLayers) {
  for (const Tensor& x : {torch::randn({2, 16, 3, 3}), image(torch::kDouble),
                          torch::randn({4, 16, 20, 20}), image(torch::kFloat).narrow(2, 1, 19)}) {
    for (const bool has_residual : {false, true}) {
      BatchNormReLU2d layer(16);
      torch::nn::BatchNorm2d norm(16);
      layer->to(x.scalar_type());
      norm->to(x.scalar_type());
      const Tensor residual = has_residual ? torch::randn_like(x) : Tensor();
      const Tensor y = layer->forward(x, residual);
      Tensor want = norm->forward(x);
      if (has_residual) want = want + residual;
      EXPECT_TRUE(torch::equal(y, torch::relu(want)));
      EXPECT_TRUE(torch::equal(layer->running_var, norm->running_var));
    }
  }
  BatchNormReLU2d layer(16);  // types that differ
  EXPECT_EQ(layer->forward(image(torch::kBFloat16), image(torch::kFloat)).scalar_type(),
            torch::kFloat);
}

TEST(BatchNormReLU2d, TrainsUnderAutocastInTheTypeOfTheConvolution) {
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 16, 3).padding(1));
  conv->to(torch::kCPU);
  BatchNormReLU2d layer(16);
  const Tensor x = image(torch::kFloat, {4, 3, 20, 20});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const Tensor hidden = conv->forward(x);
  const Tensor y = layer->forward(hidden.contiguous(torch::MemoryFormat::ChannelsLast));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(layer->weight.grad().scalar_type(), torch::kFloat);
  EXPECT_TRUE(conv->weight.grad().isfinite().all().item<bool>());
}

TEST(BatchNormReLU2d, DoubleBackwardEqualsThatOfSeparateLayers) {
  for (const bool training : {true, false}) {
    const auto penalty = [&](const auto& forward, auto layer, torch::ScalarType dtype) {
      torch::manual_seed(6);
      layer->train(training);
      layer->to(dtype);
      const Tensor x = image(torch::kFloat).to(dtype).requires_grad_();
      const Tensor residual = image(torch::kFloat).to(dtype).requires_grad_();
      const Tensor y = forward(layer, x, residual);
      const auto first =
          torch::autograd::grad({y.pow(3).sum()}, {x, residual, layer->weight}, {}, true, true);
      (first[0].pow(2).sum() + first[1].pow(2).sum() + first[2].pow(2).sum()).backward();
      return std::vector<Tensor>{first[0].detach(), first[1].detach(), x.grad(), residual.grad(),
                                 layer->weight.grad()};
    };
    const auto ours =
        penalty([](auto& layer, const Tensor& x, const Tensor& r) { return layer->forward(x, r); },
                BatchNormReLU2d(16), torch::kFloat);
    const auto exact = penalty([](auto& layer, const Tensor& x,
                                  const Tensor& r) { return torch::relu(layer->forward(x) + r); },
                               torch::nn::BatchNorm2d(16), torch::kDouble);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_LE(error(ours[i], exact[i]), 1e-5 * exact[i].norm().item<double>()) << i;
    }
  }
}

TEST(BatchNormReLU2d, GradientsOfAnyLayoutAndThoseNotWantedAreRight) {
  const Tensor x = image(torch::kFloat), seed = torch::randn({4, 16, 20, 20});
  const auto gradient = [&](const Tensor& grad) {
    BatchNormReLU2d layer(16);
    const Tensor input = x.clone().requires_grad_();
    layer->forward(input).backward(grad);
    return input.grad();
  };
  EXPECT_TRUE(
      torch::equal(gradient(seed), gradient(seed.contiguous(torch::MemoryFormat::ChannelsLast))));
  EXPECT_TRUE(torch::equal(gradient(torch::ones({}).expand_as(x)), gradient(torch::ones_like(x))));
  BatchNormReLU2d layer(16);
  layer->weight.set_requires_grad(false);
  const Tensor residual = image(torch::kFloat).requires_grad_();
  layer->forward(x, residual).sum().backward();
  EXPECT_FALSE(layer->weight.grad().defined());
  EXPECT_TRUE(layer->bias.grad().defined());
  EXPECT_TRUE(residual.grad().eq(0).logical_or(residual.grad().eq(1)).all().item<bool>());
}

TEST(BatchNormReLU2d, HasTheStateOfBatchNorm2dAndCanBeClonedAndPutInASequence) {
  BatchNormReLU2d layer(16);
  torch::nn::BatchNorm2d norm(16);
  EXPECT_EQ(layer->named_parameters().keys(), norm->named_parameters().keys());
  EXPECT_EQ(layer->named_buffers().keys(), norm->named_buffers().keys());
  const auto copy = std::dynamic_pointer_cast<BatchNormReLU2dImpl>(layer->clone());
  ASSERT_NE(copy, nullptr);
  torch::nn::Sequential sequence(torch::nn::Conv2d(16, 16, 1), BatchNormReLU2d(16));
  EXPECT_EQ(sequence->forward(image(torch::kFloat)).min().item<float>(), 0.0F);
  std::ostringstream text;
  text << *layer;
  EXPECT_EQ(text.str(),
            "torchamp::nn::BatchNormReLU2d(16, eps=1e-05, momentum=0.1, affine=true, "
            "track_running_stats=true)");
}

TEST(BatchNormReLU2d, SaysWhatItAccepts) {
  BatchNormReLU2d layer(16);
  EXPECT_THROW(layer->forward(torch::ones({4, 16})), c10::Error);
  EXPECT_THROW(layer->forward(torch::ones({4, 16, 2, 2}), torch::ones({4, 16, 2, 1})), c10::Error);
}

// What backward will read is what the graph holds: nothing of the size of an image but two.
TEST(BatchNormReLU2d, KeepsTheInputAndTheOutputAlone) {
  const Tensor x = image(torch::kBFloat16).requires_grad_();
  Tensor residual = image(torch::kBFloat16);
  BatchNormReLU2d layer(16);
  const Tensor y = layer->forward(x, residual);
  EXPECT_EQ(residual.use_count(), 1U);  // not kept
  EXPECT_EQ(x.use_count(), 3U);         // here, in the graph, and where its gradient goes
}

}  // namespace
}  // namespace torchamp::nn
