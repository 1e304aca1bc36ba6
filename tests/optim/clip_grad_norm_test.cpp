// clip_grad_norm_ against Python (clip_grad_norm.json, written by make_clip_golden.py), and what
// Python's function cannot do.

#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ATen/Version.h>
#include <torch/torch.h>

#include "torchamp/torchamp.h"

namespace torchamp::test {
namespace {

using nlohmann::json;

constexpr float kInf = std::numeric_limits<float>::infinity();

at::Tensor with_grad(const at::Tensor& gradient) {
  auto parameter = torch::zeros_like(gradient).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

double number(const json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

at::ScalarType dtype_of(const std::string& name) {
  return name == "float32"    ? at::kFloat
         : name == "bfloat16" ? at::kBFloat16
         : name == "float64"  ? at::kDouble
                              : at::kComplexFloat;
}

at::Tensor tensor_of(const json& numbers, const std::vector<int64_t>& shape, at::ScalarType dtype) {
  std::vector<double> values;
  for (const auto& value : numbers) {
    values.push_back(number(value));
  }
  const auto flat = torch::tensor(values, at::kDouble);
  if (dtype != at::kComplexFloat) {
    return flat.reshape(shape).to(dtype);
  }
  auto parts = shape;
  parts.push_back(2);
  return torch::view_as_complex(flat.reshape(parts)).to(dtype);
}

TEST(ClipGradNorm, GivesPythonsNumbers) {
  std::ifstream file(TORCHAMP_GOLDEN_DIR "/clip_grad_norm.json");
  ASSERT_TRUE(file) << "tests/golden/clip_grad_norm.json is missing";
  const json golden = json::parse(file);
  // Sums are taken lane by lane, so another instruction set may round differently: the total of n
  // terms within n * epsilon, the powers of p = 3 and 0.5 adding a few ulp; 64 epsilon cover the at
  // most 40 terms of a tensor here.
  std::string capability = at::get_cpu_capability();
  const bool exact = capability == golden["cpu_capability"].get<std::string>();
  for (const auto& entry : golden["cases"]) {
    const auto dtype = dtype_of(entry["dtype"]);
    const double norm_type = number(entry["norm_type"]);
    SCOPED_TRACE(entry["dtype"].get<std::string>() + " p " + std::to_string(norm_type));
    std::vector<at::Tensor> parameters;
    for (size_t i = 0; i < entry["gradients"].size(); ++i) {
      parameters.push_back(with_grad(tensor_of(entry["gradients"][i], entry["shapes"][i], dtype)));
    }
    const auto norm = optim::clip_grad_norm_(parameters, entry["max_norm"], norm_type);
    const double epsilon = dtype == at::kDouble     ? 0x1p-52
                           : dtype == at::kBFloat16 ? 0x1p-7
                                                    : 0x1p-23;
    // The 2-norm is summed in double and in one order for every machine, Python's in float32 (and
    // rounded to the gradients' type), so these two agree within Python's error.
    const double tolerance = exact && norm_type != 2.0 ? 0.0 : 64 * epsilon;
    const double expected = number(entry["norm"]);
    EXPECT_NEAR(norm.item<double>(), expected, tolerance * expected);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto clipped = tensor_of(entry["clipped"][i], entry["shapes"][i], dtype);
      EXPECT_TRUE(torch::allclose(parameters[i].grad(), clipped, tolerance, 0.0)) << i;
    }
  }
}

TEST(ClipGradNorm, RoundsTheNormOnce) {
  torch::manual_seed(0);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kComplexFloat}) {
    std::vector<at::Tensor> parameters;
    double sum = 0.0;  // the oracle: one number after the other, in double
    for (const int64_t n : {3, 1000, 70000}) {
      parameters.push_back(with_grad(torch::randn({n}, torch::dtype(at::kFloat)).to(dtype)));
      at::Tensor values = parameters.back().grad();
      if (values.is_complex()) values = torch::view_as_real(values);
      values = values.to(at::kDouble).contiguous();
      for (int64_t i = 0; i < values.numel(); ++i) {
        sum += values.const_data_ptr<double>()[i] * values.const_data_ptr<double>()[i];
      }
    }
    const at::Tensor norm = optim::grad_norm(parameters);
    EXPECT_EQ(norm.scalar_type(), at::kFloat);
    EXPECT_NEAR(norm.item<double>(), std::sqrt(sum), std::sqrt(sum) * 0x1p-24 * 1.0001);
  }
}

TEST(ClipGradNorm, KnowsNormsWhoseSquareFloatCannotHold) {
  const auto p = with_grad(torch::tensor({3e30F, 4e30F}));
  EXPECT_FLOAT_EQ(optim::clip_grad_norm_({p}, 1.0).item<float>(), 5e30F);
  EXPECT_NEAR(p.grad()[0].item<double>(), 0.6, 1e-6);
}

TEST(ClipGradNorm, ScalesThreeFourToNormOne) {
  const auto p = with_grad(torch::tensor({3.0F, 4.0F}));
  const auto norm = clip_grad_norm_({p}, 1.0);
  EXPECT_EQ(norm.item<float>(), 5.0F);
  EXPECT_EQ(norm.dim(), 0);
  EXPECT_TRUE(torch::allclose(p.grad(), torch::tensor({0.6F, 0.8F}), 1e-6));
}

TEST(ClipGradNorm, AfterUnscaleSeesTrueGradients) {
  auto p = torch::zeros({2}).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(1.0));
  GradScaler scaler({.init_scale = 1024});
  scaler.scale((p * torch::tensor({3.0F, 4.0F})).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_EQ(clip_grad_norm_({p}, 1.0).item<float>(), 5.0F);
  scaler.step(optimizer);
  EXPECT_TRUE(torch::allclose(p.detach(), torch::tensor({-0.6F, -0.8F}), 0, 1e-6));
}

TEST(ClipGradNorm, WithoutGradientsIsZeroAndChangesNothing) {
  const auto p = torch::zeros({2}).requires_grad_();
  EXPECT_EQ(clip_grad_norm_({p, at::Tensor()}, 1.0).item<float>(), 0.0F);
  EXPECT_EQ(clip_grad_norm_({}, 1.0).item<float>(), 0.0F);
}

TEST(ClipGradNorm, CountsATiedParameterOnce) {
  const auto p = with_grad(torch::tensor({3.0F, 4.0F}));
  EXPECT_EQ(clip_grad_norm_({p, p}, 2.5).item<float>(), 5.0F);
  EXPECT_TRUE(torch::allclose(p.grad(), torch::tensor({1.5F, 2.0F}), 1e-6));
}

TEST(ClipGradNorm, MixesDtypes) {
  const auto p = with_grad(torch::tensor({3.0F}));
  const auto q = with_grad(torch::tensor({4.0}, at::kDouble));
  const auto r = with_grad(torch::tensor({12.0F}).to(at::kBFloat16));
  EXPECT_EQ(clip_grad_norm_({p, q, r}, 6.5).item<double>(), 13.0);
  EXPECT_NEAR(q.grad().item<double>(), 2.0, 1e-6);
}

TEST(ClipGradNorm, CountsSparseGradientsCoalesced) {
  const auto indices = torch::tensor({{0, 0, 1}}, at::kLong);
  auto p = torch::zeros({2}).requires_grad_();
  p.mutable_grad() = torch::sparse_coo_tensor(indices, torch::tensor({1.0F, 2.0F, 4.0F}), {2});
  EXPECT_EQ(clip_grad_norm_({p}, 1.0).item<float>(), 5.0F);  // (1 + 2, 4)
  EXPECT_TRUE(torch::allclose(p.grad().to_dense(), torch::tensor({0.6F, 0.8F}), 1e-6));
}

TEST(ClipGradNorm, NonFiniteNormIsAnErrorOnlyWhenAskedFor) {
  const auto p = with_grad(torch::tensor({3.0F, kInf}));
  try {
    clip_grad_norm_({p}, 1.0, 2.0, /*error_if_nonfinite=*/true);
    FAIL() << "an inf norm was accepted";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("is inf, so they cannot be clipped"),
              std::string::npos);
  }
  EXPECT_EQ(p.grad()[0].item<float>(), 3.0F);
  EXPECT_EQ(clip_grad_norm_({p}, 1.0).item<float>(), kInf);
  EXPECT_EQ(p.grad()[0].item<float>(), 0.0F);
  EXPECT_TRUE(std::isnan(p.grad()[1].item<float>()));
}

TEST(ClipGradNorm, RefusesALimitThatCannotWork) {
  const auto p = with_grad(torch::ones({2}));
  EXPECT_THROW(clip_grad_norm_({p}, -1.0), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_({p}, std::nan("")), c10::ValueError);
  EXPECT_THROW(clip_grad_norm_({p}, 1.0, std::nan("")), c10::ValueError);
  EXPECT_TRUE(p.grad().eq(1).all().item<bool>());
}

TEST(GradNorm, ChangesNothing) {
  const auto p = with_grad(torch::tensor({3.0F, 4.0F}));
  EXPECT_EQ(optim::grad_norm({p}).item<float>(), 5.0F);
  EXPECT_EQ(optim::grad_norm({p}, 1.0).item<float>(), 7.0F);
  EXPECT_EQ(p.grad()[0].item<float>(), 3.0F);
}

}  // namespace
}  // namespace torchamp::test
