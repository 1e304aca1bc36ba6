// LAMB against a float64 loop of the paper's algorithm 2 with bias correction.

#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "optim/python_loops.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

// One tensor, in double, number by number.
struct PaperLamb {
  std::vector<double> p, m, v;
  int t = 0;

  explicit PaperLamb(const at::Tensor& parameter) {
    const at::Tensor flat = parameter.detach().to(torch::kDouble).contiguous().view(-1);
    p.assign(flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel());
    m.assign(p.size(), 0.0);
    v.assign(p.size(), 0.0);
  }

  void step(const at::Tensor& gradient, double lr, double weight_decay, double eps) {
    ++t;
    const at::Tensor g = gradient.to(torch::kDouble).contiguous().view(-1);
    std::vector<double> u(p.size());
    double weight_norm = 0.0, direction_norm = 0.0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double gi = g.const_data_ptr<double>()[i];
      m[i] = 0.9 * m[i] + 0.1 * gi;
      v[i] = 0.999 * v[i] + 0.001 * gi * gi;
      const double m_hat = m[i] / (1.0 - std::pow(0.9, t));
      const double v_hat = v[i] / (1.0 - std::pow(0.999, t));
      u[i] = m_hat / (std::sqrt(v_hat) + eps) + weight_decay * p[i];
      weight_norm += p[i] * p[i];
      direction_norm += u[i] * u[i];
    }
    const double ratio =
        weight_norm > 0 && direction_norm > 0 ? std::sqrt(weight_norm / direction_norm) : 1.0;
    for (size_t i = 0; i < p.size(); ++i) p[i] -= lr * ratio * u[i];
  }
};

class Lamb : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(Lamb, FollowsThePaper) {
  torch::manual_seed(6);
  std::vector<at::Tensor> parameters;
  std::vector<PaperLamb> expected;
  for (const int64_t n : {1, 17, 513, 70001}) {
    parameters.push_back(torch::randn({n}, torch::dtype(GetParam())).requires_grad_());
    expected.emplace_back(parameters.back());
  }
  optim::LAMB optimizer(parameters, optim::LAMBOptions(1e-2).weight_decay(0.1));
  constexpr int kSteps = 10;
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = torch::randn_like(parameters[i]);
      expected[i].step(parameters[i].grad(), 1e-2, 0.1, 1e-6);
    }
    optimizer.step();
  }
  // A step multiplies direction and ratio, each with a handful of roundings, by lr: at most 16
  // roundings of lr * |ratio * u| a step, and one of p itself.
  const double epsilon = GetParam() == torch::kDouble ? 0x1p-52 : 0x1p-23;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor values = parameters[i].detach().to(torch::kDouble).contiguous();
    for (int64_t k = 0; k < values.numel(); ++k) {
      const double right = expected[i].p[static_cast<size_t>(k)];
      ASSERT_NEAR(values.const_data_ptr<double>()[k], right,
                  kSteps * epsilon * (16 * 0.05 + std::abs(right)))
          << i << ", " << k;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Lamb, ::testing::Values(torch::kFloat, torch::kDouble),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(Lamb, ARatioOfANormThatIsZeroIsOne) {
  at::Tensor zero_weight = torch::zeros({4}).requires_grad_();
  zero_weight.mutable_grad() = torch::ones({4});
  at::Tensor zero_direction = torch::ones({4}).requires_grad_();
  zero_direction.mutable_grad() = torch::zeros({4});
  optim::LAMB optimizer({zero_weight, zero_direction}, optim::LAMBOptions(0.5).weight_decay(0));
  optimizer.step();
  // u = 1 / (1 + 1e-6)
  EXPECT_NEAR(zero_weight[0].item<double>(), -0.5 / (1 + 1e-6), 1e-7);
  EXPECT_TRUE(torch::equal(zero_direction, torch::ones({4})));
}

TEST(Lamb, SkipsClipsAndGoesThroughAnArchive) {
  at::Tensor p = torch::ones({3}).requires_grad_();
  optim::LAMB optimizer({p}, optim::LAMBOptions(0.1));
  amp::GradScaler scaler({.init_scale = 8});
  scaler.scale(torch::zeros({}));
  p.mutable_grad() = torch::full({3}, std::numeric_limits<float>::infinity());
  EXPECT_TRUE(scaler.step(optimizer).skipped());
  scaler.update();
  EXPECT_TRUE(torch::equal(p, torch::ones({3})));
  EXPECT_TRUE(optimizer.state().empty());
  p.mutable_grad() = torch::full({3}, 4.0);
  EXPECT_TRUE(scaler.step(optimizer).applied());
  scaler.update();
  const at::Tensor after = p.detach().clone();

  std::stringstream stream;
  torch::save(optimizer, stream);
  optim::LAMB second({p}, optim::LAMBOptions(0.7));
  torch::load(second, stream);
  EXPECT_EQ(second.param_groups()[0].options().get_lr(), 0.1);
  at::Tensor q = p;
  for (auto* each : {&optimizer, &second}) {
    const torch::NoGradGuard no_grad;
    p.copy_(after);
    p.mutable_grad() = torch::full({3}, 2.0);
    each->step();
    if (each == &optimizer) q = p.detach().clone();
  }
  EXPECT_EQ(testing::num_different(p, q), 0);
  EXPECT_THROW(optim::LAMB({p}, optim::LAMBOptions(-1.0)), c10::ValueError);
}

}  // namespace
}  // namespace torchamp
