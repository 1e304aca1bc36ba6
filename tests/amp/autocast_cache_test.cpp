// Autocast: which casts are kept, for how long, and what gradients see of it.

#include <optional>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;

struct Layer {
  at::Tensor x = torch::ones({2, 4});
  at::Tensor weight = torch::ones({4, 4}).requires_grad_();
  at::Tensor bias = torch::zeros({4}).requires_grad_();
  at::Tensor operator()() const { return at::linear(x, weight, bias); }
};

float forward(const at::Tensor& weight) {
  return torch::mm(torch::ones({1, 1}), weight).item<float>();
}

TEST(AutocastCache, NestedOtherDtypeCastsAnew) {
  const Layer layer;
  const Autocast outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
  {
    const Autocast inner(at::kCPU, at::kHalf);
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
    {
      const Autocast innermost(at::kCPU, at::kBFloat16);
      EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
    }
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
  }
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
}

TEST(AutocastCache, OtherDtypeBehindADisabledRegionCastsAnew) {
  const Layer layer;
  const Autocast outer(at::kCPU, at::kBFloat16);
  layer();
  const Autocast island(at::kCPU, {}, {.enabled = false});
  EXPECT_EQ(layer().scalar_type(), at::kFloat);
  {
    const Autocast inner(at::kCPU, at::kHalf);
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
  }
  const Autocast again(at::kCPU, at::kBFloat16);
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
}

TEST(AutocastCache, OtherDtypeAfterClearingByHandIsStillRight) {
  const Layer layer;
  const Autocast outer(at::kCPU, at::kBFloat16);
  layer();
  {
    const Autocast inner(at::kCPU, at::kHalf);
    amp::clear_autocast_cache();
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
  }
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
}

TEST(AutocastCache, MixesWithLibTorchsOwnSwitches) {
  const Layer layer;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::increment_nesting();
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
  {
    const Autocast inner(at::kCPU, at::kHalf);
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
  }
  EXPECT_EQ(layer().scalar_type(), at::kBFloat16);
  at::autocast::decrement_nesting();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
}

TEST(AutocastCache, OtherDtypeBehindLibTorchsOwnSwitchCastsAnew) {
  const Layer layer;
  const Autocast outer(at::kCPU, at::kBFloat16);
  layer();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  {
    const Autocast inner(at::kCPU, at::kHalf);
    EXPECT_EQ(layer().scalar_type(), at::kHalf);
  }
  at::autocast::set_autocast_enabled(at::kCPU, true);
}

TEST(AutocastCache, EndsWithTheOutermostRegion) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    EXPECT_EQ(forward(weight), 1.0F);
  }
  weight.detach().fill_(5);
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 5.0F);
}

TEST(AutocastCache, EndsWithAnInnerRegionToo) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast outer(at::kCPU, at::kBFloat16);
  {
    const Autocast inner(at::kCPU, at::kBFloat16);
    EXPECT_EQ(forward(weight), 1.0F);
  }
  weight.detach().fill_(5);
  EXPECT_EQ(forward(weight), 5.0F);
}

TEST(AutocastCache, ClearedByHandShowsAWriteInsideTheRegion) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 1.0F);
  weight.detach().fill_(2);
  amp::clear_autocast_cache();
  EXPECT_EQ(forward(weight), 2.0F);
}

TEST(AutocastCache, DisabledScalersStepShowsTheNewWeights) {
  amp::GradScaler scaler({.enabled = false});
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const auto optimizer = sgd({weight});
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 1.0F);
  weight.mutable_grad() = torch::ones({1, 1});
  scaler.step(*optimizer);
  EXPECT_EQ(forward(weight), 0.0F);
}

TEST(AutocastCache, CastsOfANoGradForwardDoNotBreakALaterBackward) {
  for (const bool inference : {false, true}) {
    const Layer layer;
    const Autocast region(at::kCPU, at::kBFloat16);
    if (inference) {
      const c10::InferenceMode mode;
      layer();
    } else {
      const torch::NoGradGuard no_grad;
      layer();
    }
    const auto y = layer();
    EXPECT_TRUE(y.requires_grad());
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.to(at::kFloat).sum().backward();
    ASSERT_TRUE(layer.weight.grad().defined());
    EXPECT_EQ(layer.weight.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(layer.weight.grad().eq(2).all().item<bool>());  // two rows of ones
  }
}

TEST(AutocastCache, GradientsKeepTheParametersDtype) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Layer layer;
    at::Tensor y;
    {
      const Autocast region(at::kCPU, dtype);
      y = layer() + layer();  // the cast is used twice
    }
    y.to(at::kFloat).sum().backward();
    EXPECT_EQ(layer.weight.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(layer.weight.grad().eq(4).all().item<bool>());
  }
}

struct ProbeFunction : torch::autograd::Function<ProbeFunction> {
  static inline bool backward_saw_autocast = false;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    backward_saw_autocast = at::autocast::is_autocast_enabled(at::kCPU);
    return gradients;
  }
};

TEST(AutocastBackward, RunsWithTheStateOfItsCaller) {
  for (const bool inside : {true, false}) {
    const auto x = torch::ones({1}).requires_grad_();
    std::optional<Autocast> region(std::in_place, at::kCPU, at::kBFloat16);
    const auto y = ProbeFunction::apply(x);
    if (!inside) {
      region.reset();
    }
    y.sum().backward();
    EXPECT_EQ(ProbeFunction::backward_saw_autocast, inside);
  }
}

}  // namespace
}  // namespace torchamp::test
