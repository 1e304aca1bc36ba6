// Reductions, elementwise ops and the rarer layers in float16 against float32 and float64.

#include <cstdlib>
#include <optional>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "ops/half_check.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

namespace F = torch::nn::functional;
using torch::Tensor;

class HalfMoreOps : public ::testing::Test {
 protected:
  HalfMoreOps() {
    torch::manual_seed(11);
    setenv("TORCHAMP_OPS", "all", 1);  // also on a CPU with fp16 arithmetic
    installation_.emplace();
  }
  ~HalfMoreOps() override { unsetenv("TORCHAMP_OPS"); }
  std::optional<ops::Installation> installation_;
};

// A float16 number in the middle of the graph is read again by the backward pass.
constexpr double kHalfRounding = 1.0 / 2048;

Tensor unit(at::IntArrayRef sizes) { return (torch::rand(sizes) * 0.9 + 0.05).to(torch::kHalf); }

// The output alone: what has no gradient, or one that float16 cannot hold.
void check_output(const std::string& name, const Function& function, const Tensor& x) {
  const Tensor exact = function({x.to(torch::kDouble)}), single = function({x.to(torch::kFloat)});
  expect_one_rounding(function({x}), single, exact, 0, name);
}

// Below and above a part (2^20 elements), cut along the first, the last or the middle dimension.
std::vector<Tensor> layouts() {
  return {half({9, 7}),           transposed(half({33, 65})),
          sliced(half({33, 65})), half({1, 5, 7}).expand({3, 5, 7}),
          half({1100, 1003}),     transposed(half({1003, 1100})),
          half({2, 700, 1001})};
}

// Gradients of the small ones: those of the large are below float16's least number.
void check_reduction(const std::string& name, const Function& all, const Function& first,
                     const Function& last, double more_backward) {
  for (const Tensor& x : layouts()) {
    const auto check = [&](const Function& function, const char* which) {
      const std::string what = name + which + c10::str(x.sizes());
      if (x.dim() == 2 && x.numel() < 3000) {
        check_op(what, function, {x}, 0, more_backward);
      } else {
        check_output(what, function, x);
      }
    };
    check(all, " of ");
    check(first, ", first dimension, of ");
    check(last, ", last dimension, of ");
  }
}

TEST_F(HalfMoreOps, NormsRoundOnce) {
  const auto norm = [](double order, double factor, at::OptionalIntArrayRef dim) {
    return [=](const Tensors& x) { return torch::linalg_vector_norm(x[0] * factor, order, dim); };
  };
  static const std::vector<int64_t> first{0}, last{-1};
  check_reduction("norm 2", norm(2, 1, std::nullopt), norm(2, 1, first), norm(2, 1, last),
                  8 * kHalfRounding);
  check_reduction("norm 1", norm(1, 0.015625, std::nullopt), norm(1, 1, first), norm(1, 1, last),
                  8 * kHalfRounding);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Tensor& x : layouts()) {
    if (x.numel() == 0) continue;
    for (const double order : {3.0, infinity, -infinity, -2.0}) {
      const std::string name = "norm " + std::to_string(order) + " of " + c10::str(x.sizes());
      check_output(name, norm(order, 1, std::nullopt), x);
      check_output(name + ", first dimension", norm(order, 1, first), x);
      check_output(name + ", last dimension", norm(order, 1, last), x);
    }
    check_output("norm 0", norm(0, 1, last), x);
  }
  const Tensor large = half({1100, 1003}), small = half({30, 40});
  check_output("norm 0.5", norm(0.5, 0.015625, std::nullopt), small);
  check_output("norm 0 of all", norm(0, 1, std::nullopt), small);
  EXPECT_TRUE(torch::linalg_vector_norm(large, 0).isinf().item<bool>());  // 1,103,300 of them
  check_op(
      "norm, dimension kept",
      [](const Tensors& x) {
        return torch::linalg_vector_norm(x[0], 2, at::IntArrayRef{1}, /*keepdim=*/true);
      },
      {large}, 0, kHalfRounding);
  check_op(
      "torch::norm", [](const Tensors& x) { return x[0].norm(); }, {half({90, 90})}, 0,
      kHalfRounding);
  check_op(
      "torch::norm of rows", [](const Tensors& x) { return x[0].norm(2, {1}); }, {half({90, 90})},
      0, kHalfRounding);
  EXPECT_EQ(torch::linalg_vector_norm(large, 2, std::nullopt, false, torch::kFloat).scalar_type(),
            torch::kFloat);
}

TEST_F(HalfMoreOps, MeansExtremesAndVariancesRoundOnce) {
  check_reduction(
      "mean", [](const Tensors& x) { return x[0].mean(); },
      [](const Tensors& x) { return x[0].mean(0); },
      [](const Tensors& x) { return x[0].mean(-1, true); }, kHalfRounding);
  check_op("mean of the middle", [](const Tensors& x) { return x[0].mean(1); }, {half({3, 5, 2})});
  for (const Tensor& x : layouts()) {  // equal numbers share a gradient, which rounds as it likes
    if (x.numel() == 0) continue;
    const std::string what = " of " + c10::str(x.sizes());
    check_output(
        "amax" + what, [](const Tensors& t) { return torch::amax(t[0]); }, x);
    check_output(
        "amax, first" + what, [](const Tensors& t) { return torch::amax(t[0], {0}); }, x);
    check_output(
        "amin" + what, [](const Tensors& t) { return torch::amin(t[0], {}, true); }, x);
    check_output(
        "amin, last" + what, [](const Tensors& t) { return torch::amin(t[0], {-1}); }, x);
  }
  check_reduction(
      "var", [](const Tensors& x) { return x[0].var(); },
      [](const Tensors& x) { return x[0].var(0); }, [](const Tensors& x) { return x[0].var(-1); },
      4 * kHalfRounding);
  check_reduction(
      "std", [](const Tensors& x) { return x[0].std(); },
      [](const Tensors& x) { return x[0].std(0); }, [](const Tensors& x) { return x[0].std(-1); },
      4 * kHalfRounding);
  check_op(
      "prod", [](const Tensors& x) { return torch::prod(x[0], 1); }, {half({9, 6})}, 0,
      8 * kHalfRounding);
  EXPECT_THROW(half({3, 4}).mean(7), c10::Error);
  EXPECT_THROW(torch::amax(half({0, 4})), c10::Error);
}

TEST_F(HalfMoreOps, OrdersAndPlacesAreThoseOfFloat32) {
  const Tensor x = half({33, 65}), single = x.to(torch::kFloat);
  EXPECT_TRUE(torch::equal(x.argmax(), single.argmax()));
  EXPECT_TRUE(torch::equal(x.argmax(1), single.argmax(1)));
  EXPECT_TRUE(torch::equal(x.argmin(0, true), single.argmin(0, true)));
  const Tensor large = half({1500, 1003});
  EXPECT_TRUE(torch::equal(large.argmax(1), large.to(torch::kFloat).argmax(1)));
  const auto expect_same = [](const auto& of_half, const auto& of_single, const char* what) {
    EXPECT_TRUE(torch::equal(std::get<0>(of_half).to(torch::kFloat), std::get<0>(of_single)))
        << what;
    EXPECT_TRUE(torch::equal(std::get<1>(of_half), std::get<1>(of_single))) << what;
  };
  expect_same(x.median(1), single.median(1), "median");
  expect_same(x.nanmedian(1), single.nanmedian(1), "nanmedian");
  expect_same(x.kthvalue(3, 1), single.kthvalue(3, 1), "kthvalue");
  expect_same(x.topk(4, 1), single.topk(4, 1), "topk");
  expect_same(x.cummax(1), single.cummax(1), "cummax");
  expect_same(x.cummin(0), single.cummin(0), "cummin");
  EXPECT_EQ(x.median().item<float>(), single.median().item<float>());
  Tensor with_nan = x.clone();
  with_nan[3][5] = std::nan("");
  EXPECT_TRUE(with_nan.amax(1)[3].isnan().item<bool>());
  EXPECT_TRUE(with_nan.mean().isnan().item<bool>());
  EXPECT_EQ(with_nan.argmax(1)[3].item<int64_t>(), 5);
  check_op("kthvalue", [](const Tensors& t) { return std::get<0>(t[0].kthvalue(3, 1)); }, {x});
  check_op("topk", [](const Tensors& t) { return std::get<0>(t[0].topk(3, 1)); }, {x});
}

// More than one part, an uneven end, and what is not laid out in one run.
TEST_F(HalfMoreOps, ElementwiseOpsRoundOnce) {
  const std::vector<Tensor> inputs{unit({5, 7}), unit({0, 3}), unit({700, 1001}),
                                   transposed(unit({700, 1001})), sliced(unit({70, 40}))};
  const auto check_all = [&](const std::string& name, const Function& function, double more = 0) {
    for (const Tensor& x : inputs) {
      check_op(name + " of " + c10::str(x.sizes()), function, {x}, 0, more);
    }
  };
  check_all("pow 2", [](const Tensors& x) { return x[0].pow(2); });
  check_all(
      "pow 3", [](const Tensors& x) { return x[0].pow(3); }, 4 * kHalfRounding);
  check_all(
      "pow 2.5", [](const Tensors& x) { return x[0].pow(2.5); }, 4 * kHalfRounding);
  check_all(
      "erfinv", [](const Tensors& x) { return x[0].erfinv(); }, 16 * kHalfRounding);
  check_all("logit", [](const Tensors& x) { return x[0].logit(); });
  check_all("mish", [](const Tensors& x) { return F::mish(x[0]); });
  check_all(
      "xlogy", [](const Tensors& x) { return torch::xlogy(x[0], x[0].detach() * 0.5); },
      kHalfRounding);
  check_op(
      "prelu", [](const Tensors& x) { return torch::prelu(x[0], x[1]); },
      {half({9, 4, 5}), half({4})}, 0, 4 * kHalfRounding);
  check_op("addr", [](const Tensors& x) { return torch::addr(x[0], x[1], x[2]); },
           {half({9, 4}), half({9}), half({4})});
  check_op(
      "kl_div", [](const Tensors& x) { return torch::kl_div(x[0], x[1].detach()); },
      {torch::log_softmax(torch::randn({9, 12}), 1).to(torch::kHalf), unit({9, 12})},
      8 * kHalfRounding, kHalfRounding);
  for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
    check_op(
        "smooth_l1_loss",
        [=](const Tensors& x) { return torch::smooth_l1_loss(x[0], x[1], reduction); },
        {half({30, 40}), half({30, 40})}, 0, kHalfRounding);
    check_op(
        "huber_loss",
        [=](const Tensors& x) { return torch::huber_loss(x[0], x[1], reduction, 0.7); },
        {half({30, 40}), half({30, 40})}, kHalfRounding, kHalfRounding);
  }
  Tensor square = half({40, 30});
  const Tensor exact = square.to(torch::kDouble).pow(3);
  const void* memory = square.data_ptr();
  square.pow_(3);
  expect_one_rounding(square, exact.to(torch::kFloat), exact, 0, "pow_");
  EXPECT_EQ(square.data_ptr(), memory);
}

TEST_F(HalfMoreOps, FlipMovesBits) {
  for (const Tensor& x : {half({33, 65}), transposed(half({33, 65})), sliced(half({33, 65}))}) {
    const Tensor expected = x.to(torch::kFloat).flip({0, 1});
    EXPECT_TRUE(torch::equal(x.flip({0, 1}).to(torch::kFloat), expected));
    EXPECT_EQ(x.flip({0, 1}).strides(), expected.strides());
  }
  check_op("flip", [](const Tensors& x) { return x[0].flip({1}); }, {half({4, 5, 6})});
}

TEST_F(HalfMoreOps, RreluReadsTheNoiseThatItWrote) {
  const Tensor x = half({40, 30}).requires_grad_();
  Tensor noise = torch::empty_like(x);
  const Tensor y = torch::rrelu_with_noise(x, noise, 0.1, 0.3, /*training=*/true);
  const Tensor slope = torch::where(x > 0, torch::ones_like(x), noise).detach();
  const Tensor exact = (x.to(torch::kDouble) * slope.to(torch::kDouble)).detach();
  EXPECT_TRUE((noise.index({x.detach().le(0)}) >= 0.0999).all().item<bool>());
  EXPECT_TRUE((noise.index({x.detach().le(0)}) <= 0.3001).all().item<bool>());
  // The slope is rounded, and then the product, from the slope before it was rounded.
  expect_one_rounding(y.detach(), exact.to(torch::kFloat), exact, kHalfRounding, "rrelu");
  y.sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), slope));
  torch::nn::RReLU module;
  EXPECT_EQ(module->forward(x).scalar_type(), torch::kHalf);
  Tensor in_place = x.detach().clone();
  torch::rrelu_with_noise_(in_place, noise, 0.1, 0.3, true);
  EXPECT_TRUE(torch::equal(in_place.sign(), x.detach().sign()));
  module->eval();
  check_op(
      "rrelu in evaluation", [&](const Tensors& inputs) { return module->forward(inputs[0]); },
      {half({40, 30})}, 0, kHalfRounding);
}

TEST_F(HalfMoreOps, LayersRoundOnce) {
  const auto group_norm = [](const Tensors& x) { return torch::group_norm(x[0], 4, x[1], x[2]); };
  // Mean and deviation pass to the backward pass through float16.
  check_op("group_norm", group_norm, {half({3, 8, 6, 5}), half({8}), half({8})}, 0,
           8 * kHalfRounding);
  check_op("group_norm channels_last", group_norm,
           {channels_last(half({3, 8, 6, 5})), half({8}), half({8})}, 0, 8 * kHalfRounding);
  const Tensor image = half({2, 3, 12, 10}), volume = half({2, 3, 8, 9, 7});
  check_op("adaptive_avg_pool2d",
           [](const Tensors& x) {
             return torch::adaptive_avg_pool2d(x[0], {5, 4});
           },
           {image});
  check_op("adaptive_max_pool3d",
           [](const Tensors& x) {
             return std::get<0>(torch::adaptive_max_pool3d(x[0], {3, 4, 2}));
           },
           {volume});
  const Tensor samples2 = unit({2, 3, 2}), samples3 = unit({2, 3, 3});
  check_op("fractional_max_pool2d",
           [&](const Tensors& x) {
             return std::get<0>(torch::fractional_max_pool2d(x[0], {2, 2}, {6, 5},
                                                             samples2.to(x[0].scalar_type())));
           },
           {image});
  check_op("fractional_max_pool3d",
           [&](const Tensors& x) {
             return std::get<0>(torch::fractional_max_pool3d(x[0], {2, 2, 2}, {4, 4, 3},
                                                             samples3.to(x[0].scalar_type())));
           },
           {volume});
  for (const double order : {1.0, 2.0}) {
    check_op(
        "lp_pool2d",
        [=](const Tensors& x) { return F::lp_pool2d(x[0], F::LPPool2dFuncOptions(order, 2)); },
        {unit({2, 3, 12, 10})}, 8 * kHalfRounding, 32 * kHalfRounding);
  }
  const torch::NoGradGuard no_grad;
  const Tensor series = half({4, 3, 50});
  EXPECT_TRUE(torch::equal(torch::max_pool1d(series, 3, 2, 1).to(torch::kFloat),
                           torch::max_pool1d(series.to(torch::kFloat), 3, 2, 1)));
}

TEST_F(HalfMoreOps, SamplingRoundsOnce) {
  const Tensor image = half({2, 3, 12, 10}), volume = half({2, 3, 8, 9, 7});
  const Tensor grid2 = (torch::rand({2, 5, 4, 2}) * 2.4 - 1.2).to(torch::kHalf);
  const Tensor grid3 = (torch::rand({2, 5, 4, 3, 3}) * 2.4 - 1.2).to(torch::kHalf);
  for (const int64_t mode : {0, 1, 2}) {
    check_op("grid_sampler_2d",
             [=](const Tensors& x) { return torch::grid_sampler_2d(x[0], x[1], mode, 0, false); },
             {image, grid2});
    if (mode == 2) continue;  // no cubic one in three dimensions
    check_op("grid_sampler_3d",
             [=](const Tensors& x) { return torch::grid_sampler_3d(x[0], x[1], mode, 1, true); },
             {volume, grid3});
  }
  check_op("upsample_bilinear2d_aa",
           [](const Tensors& x) {
             return torch::_upsample_bilinear2d_aa(x[0], {6, 7}, false);
           },
           {image});
  check_op("upsample_bicubic2d_aa",
           [](const Tensors& x) {
             return torch::_upsample_bicubic2d_aa(x[0], {6, 7}, false);
           },
           {image});
}

// LibTorch's own float16 kernel is absent for the mean, which is the default.
TEST_F(HalfMoreOps, TheMeanOfCtcLossesRoundsOnce) {
  const Tensor words = torch::randint(1, 6, {3, 4});
  const Tensor scores = torch::log_softmax(torch::randn({14, 3, 6}), -1).to(torch::kHalf);
  check_op(
      "ctc_loss",
      [&](const Tensors& x) {
        return torch::ctc_loss(x[0], words, at::IntArrayRef{14, 14, 14}, at::IntArrayRef{4, 4, 4});
      },
      {scores});
  const Tensor lengths = torch::full({3}, 14, torch::kLong),
               targets = torch::full({3}, 4, torch::kLong);
  check_op("ctc_loss of tensors",
           [&](const Tensors& x) { return torch::ctc_loss(x[0], words, lengths, targets); },
           {scores});
}

TEST_F(HalfMoreOps, BagsAndDistancesRoundOnce) {
  const Tensor words = torch::randint(0, 20, {6, 5});
  for (const int64_t mode : {0, 1}) {
    check_op(
        "embedding_bag",
        [&](const Tensors& x) {
          return std::get<0>(
              torch::embedding_bag(x[0], words.flatten(), torch::arange(0, 30, 5), false, mode));
        },
        {half({20, 8})}, kHalfRounding, kHalfRounding);
  }
  for (const double order : {1.0, 2.0, 3.0}) {
    check_op(
        "cdist", [=](const Tensors& x) { return torch::cdist(x[0], x[1], order); },
        {half({9, 6}), half({7, 6})}, 0, 4 * kHalfRounding);
  }
  check_op(
      "cdist by a product", [](const Tensors& x) { return torch::cdist(x[0], x[1]); },
      {half({40, 60}), half({40, 60})}, 0, 4 * kHalfRounding);
  check_op(
      "pairwise_distance", [](const Tensors& x) { return torch::pairwise_distance(x[0], x[1]); },
      {half({9, 60}), half({9, 60})}, 4 * kHalfRounding, 4 * kHalfRounding);
}

}  // namespace
}  // namespace torchamp::testing
