// One LSTM layer in bfloat16, which oneDNN computes as one op: in bfloat16 or in float32, forward
// and backward pass alike.

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/ops/install.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

template <Way way>
void is_faster(Choice& choice) {
  for (std::optional<double>& us : choice.us) us = us.has_value() ? std::optional(2.0) : us;
  choice.us[static_cast<size_t>(way)] = 1.0;
}
constexpr auto libtorch_is_faster = is_faster<Way::kLibTorch>;
constexpr auto float32_is_faster = is_faster<Way::kFloat32>;

struct Shape {
  int64_t steps, batch, inputs, hidden;
  bool has_bias = true;
};

class RecurrentLayer : public ::testing::Test {
 protected:
  RecurrentLayer() {
    torch::manual_seed(8);
    clear_choices();
    install();
  }
  ~RecurrentLayer() override {
    detail::set_times_hook(nullptr);
    clear_choices();
    uninstall();
  }
};

struct Case {
  explicit Case(const Shape& shape)
      : lstm(torch::nn::LSTMOptions(shape.inputs, shape.hidden).bias(shape.has_bias)),
        x(torch::randn({shape.steps, shape.batch, shape.inputs}).to(torch::kBFloat16)),
        seed(torch::randn({shape.steps, shape.batch, shape.hidden}).to(torch::kBFloat16)) {
    lstm->to(torch::kBFloat16);  // the weights are numbers of bfloat16 in each dtype
  }

  Tensor forward(torch::ScalarType dtype) {
    lstm->to(dtype);
    leaf = x.to(dtype).detach().requires_grad_();
    std::tuple<Tensor, Tensor> state;
    std::tie(y, state) = lstm->forward(leaf);
    return y.detach();
  }
  Tensors backward() {
    Tensors leaves = lstm->parameters();
    leaves.insert(leaves.begin(), leaf);
    return torch::autograd::grad({y}, leaves, {seed.to(y.scalar_type())});
  }
  Tensors both(torch::ScalarType dtype) {
    const Tensor output = forward(dtype);
    Tensors results = backward();
    results.insert(results.begin(), output);
    return results;
  }

  torch::nn::LSTM lstm;
  Tensor x, seed, leaf, y;
};

std::vector<Shape> shapes() {
  return {{8, 1, 64, 64}, {5, 3, 7, 9}, {1, 1, 1, 1}, {16, 4, 33, 20, /*has_bias=*/false}};
}

double error_of(const Tensor& actual, const Tensor& exact) {
  return (actual.to(torch::kDouble) - exact).norm().item<double>() /
         std::max(1e-6, exact.norm().item<double>());  // that of weight_hh is 0 for one step
}

TEST_F(RecurrentLayer, RoundsOnceWhereFloat32IsChosen) {
  detail::set_times_hook(float32_is_faster);
  for (const Shape& shape : shapes()) {
    Case each(shape);
    const Tensors exact = each.both(torch::kDouble);
    const Tensors ours = each.both(torch::kBFloat16);
    EXPECT_EQ(count_choices().float32, 1);
    clear_choices();
    const Tensor bound = exact[0].abs() * 0x1.02p-8 + 1e-6;
    EXPECT_TRUE(((ours[0].to(torch::kDouble) - exact[0]).abs() <= bound).all().item<bool>());
    // y reaches the backward pass rounded, by 2^-9 of it at most, and the gradient is rounded, too.
    for (size_t i = 1; i < exact.size(); ++i) {
      ASSERT_EQ(ours[i].scalar_type(), torch::kBFloat16);
      EXPECT_LE(error_of(ours[i], exact[i]), 0x1p-8) << i << ", " << shape.steps << " steps";
    }
  }
}

TEST_F(RecurrentLayer, IsBitForBitThatOfTheChosenWay) {
  for (const Shape& shape : shapes()) {
    Case each(shape);
    uninstall();
    const Tensors by_libtorch = each.both(torch::kBFloat16);
    const Tensor by_float32 = each.forward(torch::kFloat).to(torch::kBFloat16);
    install();
    for (const bool float32 : {true, false}) {
      clear_choices();
      detail::set_times_hook(float32 ? float32_is_faster : libtorch_is_faster);
      for (int call = 0; call < 2; ++call) {  // measured, remembered
        const Tensors ours = each.both(torch::kBFloat16);
        EXPECT_EQ(count_choices().all, 1) << "the backward pass has no choice of its own";
        for (size_t i = 0; i < ours.size(); ++i) {
          EXPECT_EQ(ours[i].scalar_type(), by_libtorch[i].scalar_type());
          EXPECT_EQ(ours[i].sizes(), by_libtorch[i].sizes());
          EXPECT_TRUE(float32 || torch::equal(ours[i], by_libtorch[i])) << i;
        }
        EXPECT_TRUE(!float32 || torch::equal(ours[0], by_float32));
      }
    }
  }
}

// The workspace says which layout it has, whatever is chosen or switched meanwhile.
TEST_F(RecurrentLayer, BackwardFollowsItsForward) {
  Case each({8, 2, 24, 24});
  const Tensors exact = each.both(torch::kDouble);
  for (const bool float32 : {true, false}) {
    clear_choices();
    detail::set_times_hook(float32 ? float32_is_faster : libtorch_is_faster);
    each.forward(torch::kBFloat16);
    clear_choices();
    detail::set_times_hook(float32 ? libtorch_is_faster : float32_is_faster);
    Case(Shape{8, 2, 24, 24}).both(torch::kBFloat16);  // chooses the other way
    const NoChoices off;
    const Tensors grads = each.backward();
    for (size_t i = 0; i < grads.size(); ++i) {
      EXPECT_LE(error_of(grads[i], exact[i + 1]), float32 ? 0x1p-8 : 0.02) << float32 << i;
    }
  }
}

TEST_F(RecurrentLayer, OfFloat32IsRefusedByLibTorchsBackwardAloneAndNotMisread) {
  detail::set_times_hook(float32_is_faster);
  Case each({8, 2, 24, 24});
  each.forward(torch::kBFloat16);
  uninstall();
  EXPECT_THROW(each.backward(), c10::Error);
}

TEST_F(RecurrentLayer, RecordedBeforeInstallationRunsAfterIt) {
  Case each({8, 2, 24, 24});
  uninstall();
  const Tensors expected = each.both(torch::kBFloat16);
  each.forward(torch::kBFloat16);
  install();
  const Tensors grads = each.backward();
  for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(torch::equal(grads[i], expected[i + 1]));
}

TEST_F(RecurrentLayer, InEvaluationAndWithoutGradientsHasTheSameWays) {
  for (const bool float32 : {true, false}) {
    Case each({8, 2, 24, 24});
    each.lstm->eval();
    uninstall();
    const torch::NoGradGuard no_grad;
    const Tensor expected =
        float32 ? each.forward(torch::kFloat).to(torch::kBFloat16) : each.forward(torch::kBFloat16);
    install();
    clear_choices();
    detail::set_times_hook(float32 ? float32_is_faster : libtorch_is_faster);
    EXPECT_TRUE(torch::equal(each.forward(torch::kBFloat16), expected));
    EXPECT_TRUE(torch::equal(each.forward(torch::kBFloat16), expected));
    EXPECT_EQ(count_choices().all, 1);
  }
}

// Two layers, two directions, under autocast; and on threads of their own.
TEST_F(RecurrentLayer, ModulesUnderAutocastLearnTheSame) {
  detail::set_times_hook(float32_is_faster);
  torch::nn::LSTM lstm(
      torch::nn::LSTMOptions(12, 16).num_layers(2).bidirectional(true).batch_first(true));
  const Tensor x = torch::randn({2, 9, 12});
  const auto grads = [&](bool casts) {
    lstm->zero_grad();
    Tensor y;
    {
      const amp::Autocast autocast(c10::kCPU, torch::kBFloat16, {.enabled = casts});
      y = std::get<0>(lstm->forward(x));
    }
    y.to(torch::kFloat).pow(2).sum().backward();
    Tensors results;
    for (const Tensor& parameter : lstm->parameters()) results.push_back(parameter.grad().clone());
    return results;
  };
  const Tensors single = grads(false);
  Tensors low;
  std::thread([&] { low = grads(true); }).join();
  EXPECT_GE(count_choices().float32, 2);
  for (size_t i = 0; i < single.size(); ++i) {
    EXPECT_LE(error_of(low[i], single[i].to(torch::kDouble)), 0.02) << i;
  }
}

}  // namespace
}  // namespace torchamp::ops
