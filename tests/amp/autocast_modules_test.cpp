// Autocast: modules and functions of LibTorch that do more than call one listed op.

#include <tuple>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::Autocast;

TEST(AutocastModules, LstmRunsInTheRegionsDtypeWithFloatGradients) {
  const Autocast region(at::kCPU, at::kBFloat16);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(3, 5).num_layers(2).bidirectional(true));
  const auto x = torch::ones({4, 2, 3});
  const auto [y, state] = lstm(x);
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  EXPECT_EQ(std::get<0>(state).scalar_type(), at::kBFloat16);
  EXPECT_EQ(std::get<1>(state).scalar_type(), at::kBFloat16);
  y.to(at::kFloat).sum().backward();
  for (const auto& parameter : lstm->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
  const auto float_state = std::tuple(torch::zeros({4, 2, 5}), torch::zeros({4, 2, 5}));
  EXPECT_EQ(std::get<0>(lstm(x, float_state)).scalar_type(), at::kBFloat16);
}

TEST(AutocastModules, LstmCellFollowsItsInput) {
  const Autocast region(at::kCPU, at::kBFloat16);
  for (const bool bias : {true, false}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      torch::nn::LSTMCell cell(torch::nn::LSTMCellOptions(3, 3).bias(bias));
      const auto x = torch::ones({2, 3}, dtype);
      const auto first = cell(x);
      const auto second = cell(x, first);
      EXPECT_EQ(std::get<0>(second).scalar_type(), dtype);
      EXPECT_EQ(std::get<1>(second).scalar_type(), dtype);
    }
  }
}

TEST(AutocastModules, OtherRecurrentNetsRunInLibTorchsDtypes) {
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto x = torch::ones({4, 2, 3});
  EXPECT_EQ(std::get<0>(torch::nn::GRU(3, 5)(x)).scalar_type(), at::kFloat);
  EXPECT_EQ(std::get<0>(torch::nn::RNN(3, 5)(x)).scalar_type(), at::kBFloat16);
  EXPECT_EQ(torch::nn::GRUCell(3, 5)(x[0]).scalar_type(), at::kFloat);
}

TEST(AutocastModules, GroupAndInstanceNormKeepTheInputsDtype) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast region(at::kCPU, dtype);
    torch::nn::GroupNorm group_norm(torch::nn::GroupNormOptions(2, 4));
    torch::nn::InstanceNorm1d instance_norm(torch::nn::InstanceNorm1dOptions(4).affine(true));
    const auto x = torch::arange(96.0F).view({8, 4, 3}).to(dtype);
    for (const auto& [y, weight] : {std::pair{group_norm(x), group_norm->weight},
                                    std::pair{instance_norm(x), instance_norm->weight}}) {
      EXPECT_EQ(y.scalar_type(), dtype);
      y.to(at::kFloat).sum().backward();
      EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    }
  }
}

struct MatmulFunction : torch::autograd::Function<MatmulFunction> {
  static inline bool forward_saw_autocast = false;
  static inline bool forward_saw_grad_mode = true;
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    forward_saw_autocast = at::autocast::is_autocast_enabled(at::kCPU);
    forward_saw_grad_mode = torch::GradMode::is_enabled();
    context->save_for_backward({x, w});
    return torch::mm(x, w);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::mm(gradients[0], saved[1].t()), torch::mm(saved[0].t(), gradients[0])};
  }
};

TEST(AutocastModules, CustomFunctionsBackwardNeedsTheRegionToo) {
  const auto x = torch::ones({2, 2}).requires_grad_();
  const auto w = torch::ones({2, 2}).requires_grad_();
  at::Tensor outside;
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    outside = MatmulFunction::apply(x, w);
    EXPECT_TRUE(MatmulFunction::forward_saw_autocast);
    EXPECT_FALSE(MatmulFunction::forward_saw_grad_mode);
    EXPECT_EQ(outside.scalar_type(), at::kBFloat16);
    MatmulFunction::apply(x, w).sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), at::kFloat);
    EXPECT_TRUE(x.grad().eq(2).all().item<bool>());
  }
  const auto text = error_of([&] { outside.sum().backward(); });
  expect_contains(text, "have the same dtype");
  expect_contains(text, "BFloat16");
}

}  // namespace
}  // namespace torchamp::test
