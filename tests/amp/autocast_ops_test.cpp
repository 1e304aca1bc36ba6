// Autocast: the dtype in which ops run, against Python (autocast_dtypes.json, written by
// make_autocast_golden.py) and the cases that users report.

#include <fstream>
#include <functional>
#include <map>

#include <nlohmann/json.hpp>

#include <ATen/autocast_mode.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

namespace F = torch::nn::functional;
using amp::Autocast;

std::map<std::string, std::function<at::Tensor()>> ops() {
  const auto x = torch::full({4, 4}, 0.5F);
  const auto low = torch::mm(x, x);  // the region's dtype
  const auto weight = torch::ones({4, 4}).requires_grad_();
  const auto labels = torch::zeros({4}, at::kLong);
  const auto image = torch::full({1, 2, 4, 4}, 0.5F);
  const auto signal = torch::full({64}, 0.5F).to(low.scalar_type());
  const auto longs = torch::ones({2, 2}, at::kLong);
  const auto bools = torch::ones({2}, at::kBool);
  const auto complexes = torch::ones({2, 2}, at::kComplexFloat);
  return {
      {"mm", [=] { return torch::mm(x, x); }},
      {"bmm", [=] { return torch::bmm(x.unsqueeze(0), x.unsqueeze(0)); }},
      {"linear", [=] { return at::linear(x, weight); }},
      {"conv2d",
       [=] {
         return torch::conv2d(image, torch::ones({3, 2, 3, 3}));
       }},
      {"einsum",
       [=] {
         return torch::einsum("ij,jk->ik", {x, x});
       }},
      {"matmul", [=] { return torch::matmul(x, x); }},
      {"softmax", [=] { return torch::softmax(low, 1); }},
      {"log_softmax", [=] { return torch::log_softmax(low, 1); }},
      {"layer_norm", [=] { return torch::layer_norm(low, {4}); }},
      {"sum", [=] { return low.sum(); }},
      {"mean", [=] { return low.mean(); }},
      {"pow", [=] { return low.pow(2); }},
      {"exp", [=] { return low.exp(); }},
      {"norm", [=] { return low.norm(); }},
      {"var", [=] { return low.var(); }},
      {"cumsum", [=] { return low.cumsum(0); }},
      {"rsqrt", [=] { return low.rsqrt(); }},
      {"gelu", [=] { return torch::gelu(low); }},
      {"add_number", [=] { return low + 1.0; }},
      {"interpolate",
       [=] {
         return F::interpolate(
             image.to(low.scalar_type()),
             F::InterpolateFuncOptions().scale_factor(std::vector<double>{2.0, 2.0}));
       }},
      {"cross_entropy", [=] { return torch::cross_entropy_loss(low, labels); }},
      {"nll_loss", [=] { return torch::nll_loss(low, labels); }},
      {"mse_loss", [=] { return torch::mse_loss(low, low); }},
      {"l1_loss", [=] { return torch::l1_loss(low, low); }},
      {"huber_loss", [=] { return torch::huber_loss(low, low); }},
      {"smooth_l1_loss", [=] { return torch::smooth_l1_loss(low, low); }},
      {"kl_div", [=] { return torch::kl_div(low, low, at::Reduction::Sum); }},
      {"binary_cross_entropy",
       [=] { return torch::binary_cross_entropy(torch::sigmoid(low), torch::ones_like(low)); }},
      {"binary_cross_entropy_with_logits",
       [=] { return torch::binary_cross_entropy_with_logits(low, torch::ones_like(low)); }},
      {"cross_entropy_of_probabilities",
       [=] { return torch::cross_entropy_loss(low, torch::softmax(low, 1)); }},
      {"cross_entropy_smoothed",
       [=] { return torch::cross_entropy_loss(low, labels, {}, at::Reduction::Mean, -100, 0.1); }},
      {"cosine_similarity", [=] { return torch::cosine_similarity(low, low); }},
      {"cosine_embedding_loss",
       [=] { return torch::cosine_embedding_loss(low, low, torch::ones({4})); }},
      {"hinge_embedding_loss",
       [=] { return torch::hinge_embedding_loss(low, torch::ones_like(low)); }},
      {"ctc_loss",
       [=] {
         return torch::ctc_loss(torch::log_softmax(low, 1).unsqueeze(1),
                                torch::ones({1, 2}, at::kLong), torch::full({1}, 4, at::kLong),
                                torch::full({1}, 2, at::kLong));
       }},
      {"prod", [=] { return low.prod(); }},
      {"cdist", [=] { return torch::cdist(low, low); }},
      {"add_float", [=] { return low + x; }},
      {"cat_float",
       [=] {
         return torch::cat({low, x});
       }},
      {"cat_low",
       [=] {
         return torch::cat({low, low});
       }},
      {"stack_float",
       [=] {
         return torch::stack({low, x});
       }},
      {"where_float", [=] { return torch::where(x > 0, low, x); }},
      {"bilinear",
       [=] {
         return torch::bilinear(x, x, torch::ones({3, 4, 4}));
       }},
      {"dot", [=] { return torch::dot(x[0], x[0]); }},
      {"mv", [=] { return torch::mv(x, x[0]); }},
      {"outer", [=] { return torch::outer(x[0], x[0]); }},
      {"embedding", [=] { return torch::embedding(x, labels); }},
      {"embedding_bag",
       [=] { return std::get<0>(torch::embedding_bag(x, labels, torch::zeros({1}, at::kLong))); }},
      {"grid_sample",
       [=] {
         return torch::grid_sampler(image.to(low.scalar_type()), torch::zeros({1, 2, 2, 2}), 0, 0,
                                    false);
       }},
      {"inverse", [=] { return torch::linalg_inv(low + torch::eye(4, low.options())); }},
      {"svd", [=] { return std::get<1>(torch::svd(low)); }},
      {"log", [=] { return low.log(); }},
      {"rfft", [=] { return torch::fft_rfft(signal); }},
      {"stft",
       [=] {
         return torch::stft(signal, 16, {}, {}, torch::ones({16}), /*center=*/true, "reflect",
                            /*normalized=*/false, {}, /*return_complex=*/true);
       }},
      {"mm_double", [=] { return torch::mm(x.to(at::kDouble), x.to(at::kDouble)); }},
      {"mm_long", [=] { return torch::mm(longs, longs); }},
      {"bool_plus_bool", [=] { return bools + bools; }},
      {"bool_times_float", [=] { return bools * torch::ones({2}); }},
      {"mm_complex", [=] { return torch::mm(complexes, complexes); }},
  };
}

std::string python_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kLong:
      return "int64";
    case at::kBool:
      return "bool";
    case at::kComplexFloat:
      return "complex64";
    default:
      return c10::toString(dtype);
  }
}

TEST(AutocastOps, RunInPythonsDtypes) {
  std::ifstream file(TORCHAMP_GOLDEN_DIR "/autocast_dtypes.json");
  ASSERT_TRUE(file) << "tests/golden/autocast_dtypes.json is missing";
  const auto golden = nlohmann::json::parse(file)["dtypes"];
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto& expected = golden[python_name(dtype)];
    const Autocast region(at::kCPU, dtype);
    const auto table = ops();
    EXPECT_EQ(table.size(), expected.size());
    for (const auto& [name, run] : table) {
      EXPECT_EQ(python_name(run().scalar_type()), expected.at(name).get<std::string>())
          << name << " in " << dtype;
    }
  }
}

TEST(AutocastOps, BinaryCrossEntropyIsFloatOnCpu) {
  const auto x = torch::ones({2, 4});
  const auto weight = torch::ones({1, 4});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast region(at::kCPU, dtype);
    const auto logits = at::linear(x, weight);
    for (const auto target_dtype : {at::kFloat, at::kBFloat16}) {
      const auto target = torch::ones({2, 1}, target_dtype);
      EXPECT_EQ(torch::binary_cross_entropy(torch::sigmoid(logits), target).scalar_type(),
                at::kFloat);
      EXPECT_EQ(torch::binary_cross_entropy_with_logits(logits, target).scalar_type(), at::kFloat);
    }
    const Autocast island(at::kCPU, dtype, {.enabled = false});
    EXPECT_EQ(
        torch::binary_cross_entropy(torch::sigmoid(logits).to(at::kFloat), torch::ones({2, 1}))
            .scalar_type(),
        at::kFloat);
  }
}

TEST(AutocastOps, LowPrecisionInputInADisabledRegionIsAnErrorNamingBothTypes) {
  const auto weight = torch::ones({4, 4});
  const Autocast outer(at::kCPU, at::kBFloat16);
  const auto h = at::linear(torch::ones({2, 4}), weight);
  {
    const Autocast island(at::kCPU, {}, {.enabled = false});
    const auto text = error_of([&] { at::linear(h, weight); });
    expect_contains(text, "have the same dtype");
    expect_contains(text, "BFloat16");
    EXPECT_EQ(at::linear(h.to(at::kFloat), weight).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(at::linear(h, weight).scalar_type(), at::kBFloat16);
}

TEST(AutocastOps, CrossEntropyComputesInFloat32) {
  const Autocast region(at::kCPU, at::kHalf);
  const auto loss = [](std::vector<float> logits, at::ScalarType dtype) {
    const auto result = torch::cross_entropy_loss(torch::tensor(logits).view({1, 2}).to(dtype),
                                                  torch::ones({1}, at::kLong));
    EXPECT_EQ(result.scalar_type(), at::kFloat);
    return result.item<float>();
  };
  EXPECT_EQ(loss({70000, 0}, at::kFloat), 70000.0F);
  EXPECT_TRUE(std::isnan(loss({70000, 0}, at::kHalf)));  // inf before the loss sees it
  EXPECT_EQ(loss({65504, 0}, at::kHalf), 65504.0F);
  EXPECT_EQ(loss({65504, -65504}, at::kHalf), 131008.0F);
}

TEST(AutocastOps, IneligibleTypesAreLeftAlone) {
  const Autocast region(at::kCPU, at::kBFloat16);
  const auto weight = torch::ones({4, 4}, at::kDouble);
  const auto x = torch::ones({2, 4}, at::kDouble);
  EXPECT_EQ(at::linear(x, weight).scalar_type(), at::kDouble);
  const auto text = error_of([&] { at::linear(x, weight.to(at::kFloat)); });
  EXPECT_TRUE(text.find("ouble") != std::string::npos && text.find("BFloat16") != std::string::npos)
      << text;
}

TEST(AutocastOps, CatOfTheOtherLowTypeIsAnError) {
  const auto half = torch::ones({2}, at::kHalf);
  const Autocast region(at::kCPU, at::kBFloat16);
  expect_contains(error_of([&] { torch::cat({half, half}); }), "Unexpected floating ScalarType");
}

TEST(AutocastOps, NormLayersWantFloatParameters) {
  {
    const Autocast region(at::kCPU, at::kBFloat16);
    const auto x = torch::ones({8, 4});
    torch::nn::LayerNorm layer_norm(torch::nn::LayerNormOptions({4}));
    torch::nn::BatchNorm1d batch_norm(4);
    layer_norm->to(at::kBFloat16);
    batch_norm->to(at::kBFloat16);
    const std::string part = "mixed dtype (CPU): expect parameter to have scalar type of Float";
    expect_contains(error_of([&] { layer_norm(x); }), part);
    expect_contains(error_of([&] { batch_norm(x); }), part);
  }
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const Autocast region(at::kCPU, dtype);
    torch::nn::LayerNorm layer_norm(torch::nn::LayerNormOptions({4}));
    torch::nn::BatchNorm1d batch_norm(4);
    const auto x = torch::rand({8, 4}).to(dtype);
    for (const auto& [y, weight] : {std::pair{layer_norm(x), layer_norm->weight},
                                    std::pair{batch_norm(x), batch_norm->weight}}) {
      EXPECT_EQ(y.scalar_type(), dtype);
      y.to(at::kFloat).sum().backward();
      EXPECT_EQ(weight.grad().scalar_type(), at::kFloat);
    }
  }
}

TEST(AutocastOps, BatchNormRunsWithAndWithoutAffineAndStatistics) {
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    for (const bool affine : {true, false}) {
      for (const bool track : {true, false}) {
        torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 6, 3));
        torch::nn::BatchNorm2d norm(
            torch::nn::BatchNorm2dOptions(6).affine(affine).track_running_stats(track));
        at::Tensor y;
        {
          const Autocast region(at::kCPU, dtype);
          y = norm(conv(torch::rand({2, 3, 6, 6})));
        }
        EXPECT_EQ(y.scalar_type(), dtype);
        y.to(at::kFloat).square().sum().backward();
        EXPECT_TRUE(conv->weight.grad().isfinite().all().item<bool>());
        if (track) {
          EXPECT_EQ(norm->running_mean.scalar_type(), at::kFloat);
        }
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::test
