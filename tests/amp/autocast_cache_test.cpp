// Autocast: which casts are kept, for how long, and what gradients see of it.

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/policy_kernels.h"

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

TEST(AutocastCache, AWriteInsideTheRegionIsSeen) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 1.0F);
  weight.detach().fill_(2);
  EXPECT_EQ(forward(weight), 2.0F);
  {
    const torch::NoGradGuard no_grad;
    weight.mul_(2);
  }
  EXPECT_EQ(forward(weight), 4.0F);
  {
    const c10::InferenceMode inference;
    weight.fill_(7);
    EXPECT_EQ(forward(weight), 7.0F);
  }
  EXPECT_EQ(forward(weight), 7.0F);
}

TEST(AutocastCache, ExchangedMemoryIsSeen) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 1.0F);
  weight.set_data(torch::full({1, 1}, 3.0F));
  EXPECT_EQ(forward(weight), 3.0F);
}

// A write through data() does not move the version counter: only this page's one exception.
TEST(AutocastCache, MemoryExchangedTwiceIsSeen) {
  // The second exchange may get the address of the first memory, which is free by then.
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  for (int i = 2; i < 10; ++i) {
    forward(weight);
    weight.set_data(torch::zeros({1, 1}));
    weight.set_data(torch::full({1, 1}, static_cast<float>(i)));
    EXPECT_EQ(forward(weight), static_cast<float>(i));
  }
}

TEST(AutocastCache, AnotherShapeOfTheSameMemoryIsSeen) {
  const auto weight = torch::arange(4.0F).view({2, 2}).clone().requires_grad_();
  const auto product = [&] { return torch::mm(torch::eye(2), weight).to(at::kFloat).detach(); };
  const Autocast region(at::kCPU, at::kBFloat16);
  product();
  weight.set_data(weight.data().t());
  EXPECT_TRUE(product().equal(weight));
  weight.set_data(weight.data().slice(1, 0, 1));
  EXPECT_TRUE(product().equal(weight));
}

TEST(AutocastCache, AWeightThatWasFrozenSinceGetsNoGradient) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const auto x = torch::ones({1, 1});
  const Autocast region(at::kCPU, at::kBFloat16);
  torch::mm(x, weight);
  weight.requires_grad_(false);
  EXPECT_FALSE(torch::mm(x, weight).requires_grad());
  EXPECT_FALSE(torch::mm(x, weight.t()).requires_grad());
  const auto y = torch::mm(torch::ones({1, 1}).requires_grad_(), weight);
  weight.requires_grad_(true);
  y.sum().backward();
  EXPECT_FALSE(weight.grad().defined());
}

TEST(AutocastCache, CastsOfLeavesThatAreGoneGoBeforeTheRegionEnds) {
  const auto weight = torch::ones({2, 2}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  for (int i = 0; i < 100; ++i) {
    const auto x = torch::ones({2, 2}).requires_grad_();
    torch::mm(x, weight).sum().backward();
  }
  EXPECT_LE(amp::detail::num_kept_casts(), 2U);
}

TEST(AutocastCache, ClearedByHandShowsAWriteThatNothingRecords) {
  const auto weight = torch::ones({1, 1}).requires_grad_();
  const Autocast region(at::kCPU, at::kBFloat16);
  EXPECT_EQ(forward(weight), 1.0F);
  weight.data().fill_(2);
  amp::clear_autocast_cache();
  EXPECT_EQ(forward(weight), 2.0F);
}

// Copies of this thread from one dtype to another, counted where LibTorch makes them.
class Copies {
 public:
  Copies()
      : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(
            [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
              count += std::string_view(function.name()) == "aten::_to_copy" ? 1 : 0;
              return nullptr;
            }))) {
    count = 0;
  }
  ~Copies() { at::removeCallback(handle_); }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  static inline thread_local int64_t count = 0;

 private:
  at::CallbackHandle handle_;
};

// Weight and bias of a Linear, once each; the input on each call.
TEST(AutocastCache, LinearLayersWeightIsCastOnceARegion) {
  torch::nn::Linear linear(4, 4);
  const auto x = torch::ones({2, 4});
  for (const bool frozen : {false, true}) {
    for (auto& parameter : linear->parameters()) {
      parameter.set_requires_grad(!frozen);
    }
    const Autocast region(at::kCPU, at::kBFloat16);
    const Copies copies;
    const auto y = linear(x);
    EXPECT_EQ(Copies::count, 3);
    const auto again = linear(x);
    EXPECT_EQ(Copies::count, 4);
    EXPECT_TRUE(at::equal(y, again));
    EXPECT_EQ(again.requires_grad(), !frozen);
  }
}

TEST(AutocastCache, LinearLayersCastIsGoodForItsGradient) {
  torch::nn::Linear linear(3, 2);
  const auto x = torch::arange(6, torch::kFloat).view({2, 3});
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    auto y = linear(x) + linear(x);
    y.to(at::kFloat).sum().backward();
  }
  // d sum(2 (x W^T + b)) / dW: twice the column sums of x, {3, 5, 7}, in each row.
  const auto expected = torch::tensor({6.0F, 10.0F, 14.0F}).expand({2, 3});
  EXPECT_TRUE(at::equal(linear->weight.grad(), expected)) << linear->weight.grad();
  EXPECT_TRUE(at::equal(linear->bias.grad(), torch::full({2}, 4.0F)));
}

TEST(AutocastCache, HookOnATransposedWeightIsStillCalled) {
  const auto weight = torch::ones({2, 2}).requires_grad_();
  int64_t calls = 0;
  const Autocast region(at::kCPU, at::kBFloat16);
  torch::mm(torch::ones({2, 2}), weight.t());  // a cast is there to be taken
  const auto transposed = weight.t();
  transposed.register_hook([&](const at::Tensor& gradient) {
    ++calls;
    return gradient * 2;
  });
  torch::mm(torch::ones({2, 2}), transposed).to(at::kFloat).sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(weight.grad().eq(4).all().item<bool>());  // two rows of ones, doubled by the hook
}

TEST(AutocastCache, ServesNoGradAndInferenceModeWithOneCast) {
  torch::nn::Linear linear(4, 4);
  const auto x = torch::ones({2, 4});
  for (const bool inference : {false, true}) {
    const Autocast region(at::kCPU, at::kBFloat16);
    const Copies copies;
    for (int i = 0; i < 3; ++i) {
      if (inference) {
        const c10::InferenceMode mode;
        linear(x);
      } else {
        const torch::NoGradGuard no_grad;
        linear(x);
      }
    }
    EXPECT_EQ(Copies::count, 5) << (inference ? "inference mode" : "no_grad");
  }
}

// No version counter shows such a write, and LibTorch never keeps a cast of an input.
TEST(AutocastCache, AnInputBufferFilledByHandIsSeen) {
  auto x = torch::zeros({1, 1});
  const auto weight = torch::ones({1, 1}).requires_grad_();
  torch::nn::Linear linear(torch::nn::LinearOptions(1, 1).bias(false));
  {
    const torch::NoGradGuard no_grad;
    linear->weight.fill_(1);
  }
  const Autocast region(at::kCPU, at::kBFloat16);
  for (const float value : {1.0F, 2.0F, 3.0F}) {
    x.accessor<float, 2>()[0][0] = value;
    EXPECT_EQ(torch::mm(x, weight).item<float>(), value);
    EXPECT_EQ(at::linear(x, weight).item<float>(), value);
    EXPECT_EQ(linear(x).item<float>(), value);
    EXPECT_EQ(at::conv1d(x.view({1, 1, 1}), weight.view({1, 1, 1})).item<float>(), value);
  }
}

TEST(AutocastCache, KeepsNoTensorAlive) {
  const auto weight = torch::ones({4, 4}).requires_grad_();
  c10::weak_intrusive_ptr<c10::TensorImpl> gone(
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>{});
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    size_t kept = 0;
    for (int i = 0; i < 100; ++i) {
      const c10::InferenceMode mode;
      const auto activation = torch::ones({4, 4});
      torch::mm(activation, weight);
      const torch::NoGradGuard no_grad;
      const c10::InferenceMode normal(false);
      const auto input = torch::ones({4, 4});
      torch::mm(input, weight);
      kept = std::max(kept, amp::detail::num_kept_casts());
    }
    EXPECT_LE(kept, 3U);  // the weight, the input, and the input before
    {
      const auto dropped = torch::ones({4, 4}).requires_grad_();
      torch::mm(dropped, weight);
      gone = c10::weak_intrusive_ptr<c10::TensorImpl>(dropped.getIntrusivePtr());
    }
  }
  EXPECT_TRUE(gone.expired());
  EXPECT_EQ(amp::detail::num_kept_casts(), 0U);
}

TEST(AutocastCache, ThreadsOfDifferentDtypesDoNotMeet) {
  const Layer layer;
  std::atomic<int> wrong = 0;
  const auto run = [&](at::ScalarType dtype) {
    for (int i = 0; i < 200; ++i) {
      const Autocast region(at::kCPU, dtype);
      wrong += layer().scalar_type() == dtype ? 0 : 1;
      wrong += layer().scalar_type() == dtype ? 0 : 1;
    }
  };
  std::thread other(run, at::kHalf);
  run(at::kBFloat16);
  other.join();
  EXPECT_EQ(wrong, 0);
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
