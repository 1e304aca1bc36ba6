// Every op in float16 against its float32 result and float64, forward and backward.

#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "ops/half_check.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

class HalfOps : public ::testing::Test {
 protected:
  HalfOps() {
    torch::manual_seed(7);
    setenv("TORCHAMP_OPS", "all", 1);  // also on a CPU with fp16 arithmetic
    installation_.emplace();
  }
  ~HalfOps() override { unsetenv("TORCHAMP_OPS"); }
  std::optional<ops::Installation> installation_;
};

Tensor mm(const Tensors& x) { return torch::mm(x[0], x[1]); }
Tensor bmm(const Tensors& x) { return torch::bmm(x[0], x[1]); }
Tensor addmm(const Tensors& x) { return torch::addmm(x[0], x[1], x[2]); }

// A float16 number in the middle of the graph is read again by the backward pass.
constexpr double kHalfRounding = 1.0 / 2048;

TEST_F(HalfOps, MatrixProductsRoundOnce) {
  check_op("mm", mm, {half({5, 7}), half({7, 3})});
  check_op("mm of one row", mm, {half({1, 300}), half({300, 1})});
  check_op("mm transposed", mm, {transposed(half({33, 65})), transposed(half({65, 17}))});
  check_op("mm sliced", mm, {sliced(half({33, 65})), sliced(half({65, 40}))});
  check_op("mm expanded", mm, {half({1, 65}).expand({33, 65}), half({65, 1}).expand({65, 40})});
  check_op("mm of nothing", mm, {half({0, 4}), half({4, 3})});
  check_op("mm of an empty sum", mm, {half({2, 0}), half({0, 3})});
  check_op("addmm with a bias", addmm, {half({40}), half({33, 65}), half({65, 40})});
  check_op("addmm with a matrix", addmm, {half({33, 40}), half({33, 65}), half({65, 40})});
  check_op("addmm with a column", addmm, {half({33, 1}), half({33, 65}), half({65, 40})});
  check_op("linear", [](const Tensors& x) { return torch::linear(x[0], x[1], x[2]); },
           {half({6, 5, 64}), half({32, 64}), half({32})});
  check_op("mv", [](const Tensors& x) { return torch::mv(x[0], x[1]); },
           {half({70, 900}), half({900})});
  check_op("addmv", [](const Tensors& x) { return torch::addmv(x[0], x[1], x[2]); },
           {half({70}), transposed(half({70, 900})), half({900})});
  check_op("dot", [](const Tensors& x) { return torch::dot(x[0], x[1]); },
           {half({3000}), half({3000})});
}

TEST_F(HalfOps, ProductsLargerThanAPanelRoundOnce) {
  check_op("a wide right side", mm, {half({90, 9000}), transposed(half({9000, 600}))});
  check_op("a wide right side, by rows", mm, {half({90, 9000}), half({9000, 600})});
  check_op("a tall left side", mm, {half({5000, 1000}), half({1000, 70})});
  check_op("both", addmm, {half({300}), half({300, 14000}), half({14000, 300})});
  check_op("a large output", addmm, {half({2100, 2300}), half({2100, 16}), half({16, 2300})});
}

TEST_F(HalfOps, BatchedProductsRoundOnce) {
  check_op("bmm", bmm, {half({3, 5, 7}), half({3, 7, 4})});
  check_op("bmm transposed", bmm, {half({9, 20, 33}), transposed(half({9, 33, 18}))});
  check_op("bmm sliced", bmm, {sliced(half({9, 20, 33})), sliced(half({9, 33, 18}))});
  check_op("bmm of nothing", bmm, {half({0, 2, 3}), half({0, 3, 4})});
  check_op("bmm in parts", bmm, {half({5, 1000, 900}), half({5, 900, 30})});
  check_op("baddbmm", [](const Tensors& x) { return torch::baddbmm(x[0], x[1], x[2]); },
           {half({9, 20, 18}), half({9, 20, 33}), half({9, 33, 18})});
  check_op("addbmm", [](const Tensors& x) { return torch::addbmm(x[0], x[1], x[2]); },
           {half({20, 18}), half({9, 20, 33}), half({9, 33, 18})});
  check_op("matmul", [](const Tensors& x) { return torch::matmul(x[0], x[1]); },
           {half({2, 3, 20, 33}), half({2, 3, 33, 18})});
}

TEST_F(HalfOps, InPlaceAndOutRoundOnce) {
  const Tensor a = half({33, 65}), b = half({65, 40}), c = half({33, 40});
  const auto expect = [&](const Tensor& result, const Tensor& exact, const char* what) {
    expect_one_rounding(result, exact.to(torch::kFloat), exact, 0, what);
  };
  const Tensor product = a.to(torch::kDouble).mm(b.to(torch::kDouble));
  expect(c.clone().addmm_(a, b, 0.5, 2), 0.5 * c.to(torch::kDouble) + 2 * product, "addmm_");
  expect(torch::addmm(c[0], a, b, 0.5, -1.5), 0.5 * c[0].to(torch::kDouble) - 1.5 * product,
         "addmm with factors");
  const Tensor batch = torch::baddbmm(c[0], a.unsqueeze(0), b.unsqueeze(0), 0.5, -1.5)[0];
  expect(batch, 0.5 * c[0].to(torch::kDouble) - 1.5 * product, "baddbmm with factors");
  expect(c.unsqueeze(0).clone().baddbmm_(a.unsqueeze(0), b.unsqueeze(0), 0, 2)[0], 2 * product,
         "baddbmm_ without its first term");
  Tensor out = torch::empty({33, 40}, torch::kHalf);
  const void* memory = out.data_ptr();
  torch::mm_out(out, a, b);
  expect(out, product, "mm_out");
  EXPECT_EQ(out.data_ptr(), memory);
  Tensor strided = torch::zeros({40, 33}, torch::kHalf).t();
  torch::mm_out(strided, a, b);
  expect(strided, product, "mm_out into a transposed tensor");
  Tensor unsized = torch::empty({0}, torch::kHalf);
  torch::addmm_out(unsized, c, a, b);
  expect(unsized, c.to(torch::kDouble) + product, "addmm_out into an empty tensor");
  Tensor square = half({40, 40}), before = square.clone();
  torch::mm_out(square, square, b.narrow(0, 0, 40));
  expect(square, before.to(torch::kDouble).mm(b.narrow(0, 0, 40).to(torch::kDouble)),
         "mm_out into its own argument");
  const Tensor nan = torch::full({33, 40}, std::nan(""), torch::kHalf);
  expect(torch::addmm(nan, a, b, 0, 1), product, "addmm with beta 0 ignores NaN");
  const Tensor vector = half({33}), matrix_vector = half({65});
  expect(vector.clone().addmv_(a, matrix_vector),
         vector.to(torch::kDouble) + a.to(torch::kDouble).mv(matrix_vector.to(torch::kDouble)),
         "addmv_");
}

TEST_F(HalfOps, OverflowGivesInfinityAndNaNStays) {
  const Tensor large = torch::full({4, 8}, 300.0, torch::kHalf);
  EXPECT_TRUE(torch::mm(large, large.t()).isinf().all().item<bool>());  // 8 * 300 * 300
  Tensor with_nan = half({4, 8});
  with_nan[1][2] = std::nan("");
  const Tensor product = torch::mm(with_nan, half({8, 3}));
  EXPECT_TRUE(product[1].isnan().all().item<bool>());
  EXPECT_FALSE(product[0].isnan().any().item<bool>());
}

Tensor conv1d(const Tensors& x) { return F::conv1d(x[0], x[1], F::Conv1dFuncOptions().bias(x[2])); }

TEST_F(HalfOps, ConvolutionsRoundOnce) {
  const auto conv2d = [](int64_t stride, int64_t padding, int64_t groups, int64_t dilation) {
    return [=](const Tensors& x) {
      return torch::conv2d(x[0], x[1], x.size() > 2 ? x[2] : Tensor(), stride, padding, dilation,
                           groups);
    };
  };
  check_op("conv1d", conv1d, {half({3, 8, 50}), half({6, 8, 3}), half({6})});
  for (const bool last : {false, true}) {
    const auto lay = [last](const Tensor& x) { return last ? channels_last(x) : x; };
    const std::string where = last ? " channels_last" : "";
    check_op("conv2d" + where, conv2d(1, 1, 1, 1),
             {lay(half({2, 16, 14, 14})), lay(half({24, 16, 3, 3})), half({24})});
    check_op("conv2d 1x1" + where, conv2d(1, 0, 1, 1),
             {lay(half({2, 16, 14, 14})), lay(half({24, 16, 1, 1}))});
    check_op("conv2d 7x7 by 2" + where, conv2d(2, 3, 1, 1),
             {lay(half({2, 3, 30, 30})), lay(half({16, 3, 7, 7}))});
    check_op("conv2d in groups" + where, conv2d(1, 1, 4, 1),
             {lay(half({2, 16, 14, 14})), lay(half({24, 4, 3, 3})), half({24})});
    check_op("conv2d by channel" + where, conv2d(1, 1, 16, 1),
             {lay(half({2, 16, 14, 14})), lay(half({16, 1, 3, 3}))});
    check_op("conv2d dilated" + where, conv2d(1, 2, 1, 2),
             {lay(half({2, 16, 14, 14})), lay(half({24, 16, 3, 3}))});
    check_op("conv_transpose2d" + where,
             [](const Tensors& x) { return torch::conv_transpose2d(x[0], x[1], x[2], 2, 1, 1); },
             {lay(half({2, 8, 7, 7})), lay(half({8, 6, 3, 3})), half({6})});
  }
  check_op("conv2d of a slice", conv2d(1, 1, 1, 1),
           {sliced(half({2, 8, 14, 14})), half({8, 8, 3, 3})});
  check_op("conv3d", [](const Tensors& x) { return torch::conv3d(x[0], x[1], x[2], 1, 1); },
           {half({2, 4, 6, 8, 8}), half({5, 4, 3, 3, 3}), half({5})});
  check_op("conv_transpose1d",
           [](const Tensors& x) { return torch::conv_transpose1d(x[0], x[1], {}, 2, 1); },
           {half({2, 8, 20}), half({8, 6, 4})});
  check_op("conv_transpose3d",
           [](const Tensors& x) { return torch::conv_transpose3d(x[0], x[1], {}, 2, 1); },
           {half({2, 4, 3, 4, 4}), half({4, 3, 4, 4, 4})});
}

Tensor attend(const Tensors& x, bool is_causal) {
  const std::optional<Tensor> mask = x.size() > 3 ? std::optional(x[3]) : std::nullopt;
  return torch::scaled_dot_product_attention(x[0], x[1], x[2], mask, 0.0, is_causal);
}

// The backward pass reads the output, which float16 holds.
TEST_F(HalfOps, AttentionRoundsOnce) {
  const auto plain = [](const Tensors& x) { return attend(x, false); };
  const auto causal = [](const Tensors& x) { return attend(x, true); };
  const auto heads = [] { return half({2, 40, 3, 16}).transpose(1, 2); };
  check_op("attention", plain, {half({2, 3, 40, 16}), half({2, 3, 40, 16}), half({2, 3, 40, 16})},
           0, kHalfRounding);
  check_op("causal attention of split heads", causal, {heads(), heads(), heads()}, 0,
           kHalfRounding);
  const Tensor q = half({2, 3, 40, 16}), mask = torch::randn({40, 40});
  for (const auto dtype : {torch::kHalf, torch::kFloat}) {
    const torch::NoGradGuard no_grad;
    const Tensor exact = attend({q.to(torch::kDouble), q.to(torch::kDouble), q.to(torch::kDouble),
                                 mask.to(torch::kHalf).to(torch::kDouble)},
                                false);
    expect_one_rounding(attend({q, q, q, mask.to(torch::kHalf).to(dtype)}, false),
                        exact.to(torch::kFloat), exact, 1e-6, "attention with a mask");
  }
}

TEST_F(HalfOps, PoolingRoundsOnce) {
  check_op("avg_pool3d", [](const Tensors& x) { return torch::avg_pool3d(x[0], 2, 2, 1); },
           {half({2, 4, 6, 8, 8})});
  check_op("adaptive_avg_pool2d",
           [](const Tensors& x) {
             return torch::adaptive_avg_pool2d(x[0], {3, 4});
           },
           {half({2, 4, 13, 11})});
  check_op("adaptive_avg_pool2d channels_last",
           [](const Tensors& x) {
             return torch::adaptive_avg_pool2d(x[0], {3, 4});
           },
           {channels_last(half({2, 4, 13, 11}))});
  check_op("adaptive_avg_pool3d",
           [](const Tensors& x) {
             return torch::adaptive_avg_pool3d(x[0], {2, 3, 2});
           },
           {half({2, 4, 6, 8, 8})});
  check_op("col2im",
           [](const Tensors& x) {
             return torch::col2im(x[0], {9, 9}, {3, 3}, {1, 1}, {1, 1}, {1, 1});
           },
           {half({2, 36, 81})});
}

TEST_F(HalfOps, LossesRoundOnce) {
  const Tensor target = torch::randint(0, 10, {12});
  const auto unit = [](at::IntArrayRef sizes) {
    return (torch::rand(sizes) * 0.9 + 0.05).to(torch::kHalf);
  };
  check_op("binary_cross_entropy",
           [](const Tensors& x) { return torch::binary_cross_entropy(x[0], x[1].detach()); },
           {unit({12, 10}), unit({12, 10})});
  check_op("multi_margin_loss",
           [&](const Tensors& x) { return torch::multi_margin_loss(x[0], target); },
           {half({12, 10})});
  const Tensor labels = torch::tensor({{3, 0, -1, 1}, {1, -1, 0, 0}}, torch::kLong);
  check_op("multilabel_margin_loss",
           [&](const Tensors& x) { return torch::multilabel_margin_loss(x[0], labels); },
           {half({2, 4})});
  const Tensor words = torch::randint(1, 6, {3, 4});
  // The gradient takes up the loss, which float16 holds: exp(loss) turns its rounding, up to 2^-7
  // of a loss below 32, into as much of the gradient.
  check_op(
      "ctc_loss",
      [&](const Tensors& x) {
        return torch::ctc_loss(x[0], words, at::IntArrayRef{14, 14, 14}, at::IntArrayRef{4, 4, 4},
                               0, at::Reduction::None);
      },
      {torch::log_softmax(torch::randn({14, 3, 6}), -1).to(torch::kHalf)}, 0, 1.0 / 64);
  check_op(
      "pdist", [](const Tensors& x) { return torch::pdist(x[0]); }, {half({9, 20})}, 0,
      kHalfRounding);
}

// Gates and states pass through float16 from step to step.
TEST_F(HalfOps, RecurrentLayersStayWithinAFewRoundings) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(12, 16).num_layers(2).bidirectional(true));
  torch::nn::GRU gru(torch::nn::GRUOptions(12, 16));
  const Tensor input = half({9, 4, 12});
  const auto compare = [&](auto& layer, const char* name) {
    layer->to(torch::kHalf);
    layer->zero_grad();
    const Tensor x = input.clone().requires_grad_();
    const Tensor y = std::get<0>(layer->forward(x));
    y.sum().backward();
    layer->to(torch::kDouble);
    Tensors grads;
    for (const Tensor& p : layer->parameters()) grads.push_back(p.grad().clone());
    layer->zero_grad();
    const Tensor exact_x = input.to(torch::kDouble).requires_grad_();
    const Tensor exact = std::get<0>(layer->forward(exact_x));
    exact.sum().backward();
    expect_one_rounding(y.detach(), exact.detach(), exact.detach(), 8 * kHalfRounding, name);
    expect_one_rounding(x.grad(), exact_x.grad(), exact_x.grad(), 16 * kHalfRounding, name);
    for (size_t i = 0; i < grads.size(); ++i) {
      const Tensor expected = layer->parameters()[i].grad();
      const double apart = (grads[i].to(torch::kDouble) - expected).norm().item<double>();
      EXPECT_LE(apart, 0.01 * expected.norm().item<double>()) << name << " parameter " << i;
    }
  };
  compare(lstm, "LSTM");
  compare(gru, "GRU");
}

// oneDNN computes an LSTM layer as one op, which autocast sends here.
TEST_F(HalfOps, AnLstmLayerTrainsUnderAutocast) {
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(12, 16).num_layers(2));
  const Tensor input = torch::randn({9, 4, 12});
  const auto run_with = [&](bool autocast) {
    lstm->zero_grad();
    at::autocast::set_autocast_enabled(at::kCPU, autocast);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    const Tensor output = std::get<0>(lstm->forward(input));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    output.to(torch::kFloat).pow(2).sum().backward();
    Tensors results{output.detach()};
    for (const Tensor& parameter : lstm->parameters()) results.push_back(parameter.grad().clone());
    return results;
  };
  const Tensors half_results = run_with(true), exact = run_with(false);
  EXPECT_EQ(half_results[0].scalar_type(), torch::kHalf);
  for (size_t i = 0; i < exact.size(); ++i) {
    const double apart = (half_results[i].to(torch::kFloat) - exact[i]).norm().item<double>();
    EXPECT_LE(apart, 0.005 * exact[i].norm().item<double>()) << i;
  }
}

TEST_F(HalfOps, DoubleBackwardFollowsFloat32) {
  const auto second = [](torch::ScalarType dtype, const Tensor& x0, const Tensor& w0,
                         const auto& function) {
    const Tensor x = x0.to(dtype).detach().requires_grad_(),
                 w = w0.to(dtype).detach().requires_grad_();
    const Tensor y = function(x, w);
    const Tensors first = torch::autograd::grad({y.pow(2).sum()}, {x, w}, {}, true, true);
    const Tensors twice =
        torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum() * 0.01}, {x, w});
    return twice;
  };
  const auto compare = [&](const Tensor& x, const Tensor& w, const auto& function) {
    const Tensors a = second(torch::kHalf, x, w, function);
    const Tensors b = second(torch::kDouble, x, w, function);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(a[i].scalar_type(), torch::kHalf);
      const double apart = (a[i].to(torch::kDouble) - b[i]).norm().item<double>();
      EXPECT_LE(apart, 0.005 * b[i].norm().item<double>());
    }
  };
  compare(half({6, 10}) * 0.3, half({5, 10}) * 0.3,
          [](const Tensor& x, const Tensor& w) { return torch::linear(x, w); });
  compare(half({2, 3, 8, 8}) * 0.2, half({4, 3, 3, 3}) * 0.2,
          [](const Tensor& x, const Tensor& w) { return torch::conv2d(x, w, {}, 1, 1); });
}

}  // namespace
}  // namespace torchamp::testing
