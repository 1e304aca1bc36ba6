// Cross entropy and log-softmax on the dispatcher, against LibTorch's own ops in float64.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "support/drop_warnings.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/amp/autocast_policy.h"
#include "torchamp/ops/install.h"
#include "torchamp/train/meter.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;

constexpr torch::ScalarType kDtypes[] = {torch::kFloat, torch::kBFloat16, torch::kHalf};

class CrossEntropyOp : public ::testing::Test {
 protected:
  CrossEntropyOp() {
    torch::manual_seed(4);
    at::set_num_threads(2);
    install();
  }
  ~CrossEntropyOp() override { uninstall(); }
};

struct Case {
  Tensor logits, target, weight;
  int64_t reduction = at::Reduction::Mean;
  int64_t ignore_index = -100;
  double smoothing = 0.0;
};

Case make_case(torch::ScalarType dtype, int64_t N, int64_t C) {
  Case c;
  c.logits = (torch::randn({N, C}) * 3).to(dtype);
  c.target = torch::randint(C, {N}, torch::kLong);
  return c;
}

struct Result {
  Tensor loss, grad;
};

Result compute(const Case& c, torch::ScalarType dtype, const Tensor& seed,
               std::optional<torch::ScalarType> autocast = std::nullopt) {
  const Tensor x = c.logits.to(dtype).detach().requires_grad_();
  Tensor loss;
  {
    const amp::Autocast region(torch::kCPU, autocast, {.enabled = autocast.has_value()});
    loss =
        torch::cross_entropy_loss(x, c.target, c.weight.defined() ? c.weight.to(dtype) : Tensor(),
                                  c.reduction, c.ignore_index, c.smoothing);
  }
  const Tensor grad = torch::autograd::grad({loss}, {x}, {seed.to(loss.scalar_type())})[0];
  return {loss.detach(), grad};
}

double unit(torch::ScalarType dtype) {
  return dtype == torch::kFloat ? 0x1p-23 : dtype == torch::kBFloat16 ? 0x1p-7 : 0x1p-10;
}

// One rounding to `dtype` and what float32 arithmetic adds. NaN where the exact number is.
void expect_near(const Tensor& actual, const Tensor& exact, double more, const std::string& what) {
  ASSERT_EQ(actual.sizes(), exact.sizes()) << what;
  const Tensor wide = actual.to(torch::kDouble);
  EXPECT_TRUE(torch::equal(wide.isnan(), exact.isnan())) << what;
  const Tensor error = (wide - exact).abs().nan_to_num(0, 0, 0);
  const double smallest = actual.scalar_type() == torch::kHalf ? 0x1p-25 : 0.0;
  const Tensor bound =
      exact.abs().nan_to_num(0, 0, 0) * (0.501 * unit(actual.scalar_type())) + more + smallest;
  EXPECT_LE((error - bound).max().item<double>(), 0.0)
      << what << ": error " << error.max().item<double>();
}

TEST_F(CrossEntropyOp, IsThatOfFloat64RoundedOnce) {
  for (const auto dtype : kDtypes) {
    for (const int64_t C : {1, 10, 33, 1000}) {
      for (const bool has_weight : {false, true}) {
        for (const double smoothing : {0.0, 0.1, 1.0}) {
          for (const int64_t reduction :
               {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
            Case c = make_case(dtype, 37, C);
            if (has_weight) c.weight = torch::rand({C}).to(dtype);
            c.smoothing = smoothing;
            c.reduction = reduction;
            c.ignore_index = C > 1 ? 3 : -100;
            c.target[5] = c.ignore_index;
            const Tensor seed =
                (reduction == at::Reduction::None ? torch::randn({37}) : torch::tensor(1.5F))
                    .to(dtype);
            const Result exact = compute(c, torch::kDouble, seed);
            const std::string what = c10::str(dtype, " C ", C, " weight ", has_weight,
                                              " smoothing ", smoothing, " reduction ", reduction);
            const Result plain = compute(c, dtype, seed);
            EXPECT_EQ(plain.loss.scalar_type(), dtype);
            EXPECT_EQ(plain.grad.scalar_type(), dtype);
            const double scale = 1e-6 * (1 + exact.loss.abs().max().item<double>());
            expect_near(plain.loss, exact.loss, scale, what);
            expect_near(plain.grad, exact.grad, 2e-6, what);
            if (dtype == torch::kFloat) continue;
            const Result cast = compute(c, dtype, seed, dtype);
            EXPECT_EQ(cast.loss.scalar_type(), torch::kFloat) << what;
            EXPECT_EQ(cast.grad.scalar_type(), dtype) << what;
            expect_near(cast.loss, exact.loss, scale, what + " autocast");
            expect_near(cast.grad, exact.grad, 2e-6, what + " autocast");
          }
        }
      }
    }
  }
}

// The graph holds the logits themselves: during the loss and its gradient there is one more tensor
// of the logits' size, the gradient, and nothing in float32.
TEST_F(CrossEntropyOp, KeepsNoTableInFloat32) {
  const Case c = make_case(torch::kBFloat16, 256, 4096);
  const int64_t logits_bytes = c.logits.numel() * 2;
  const Tensor x = c.logits.detach().requires_grad_();
  train::TensorMemoryMeter meter;
  const int64_t before = meter.peak_bytes();
  Tensor loss;
  {
    const amp::Autocast region(torch::kCPU, torch::kBFloat16);
    loss = torch::cross_entropy_loss(x, c.target);
  }
  EXPECT_LT(meter.peak_bytes() - before, logits_bytes / 20);
  const Tensor grad = torch::autograd::grad({loss}, {x})[0];
  EXPECT_LT(meter.peak_bytes() - before, logits_bytes + logits_bytes / 20);
}

TEST_F(CrossEntropyOp, IgnoredRowsInfAndNanAreLibTorchs) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto dtype : kDtypes) {
    Case c = make_case(dtype, 12, 20);
    c.logits[0][3] = -inf;
    c.logits[1][3] = inf;
    c.logits[2][3] = std::nanf("");
    c.logits[3].fill_(-inf);
    c.target[0] = 3;
    c.target[1] = 3;
    c.logits[4][3] = -inf;
    c.target[4] = 5;
    c.logits[5][3] = std::nanf("");
    c.logits[6][3] = -inf;
    c.target.slice(0, 5, 8).fill_(-100);
    for (const int64_t reduction : {at::Reduction::None, at::Reduction::Sum}) {
      c.reduction = reduction;
      const Tensor seed = reduction == at::Reduction::None ? torch::ones({12}) : torch::ones({});
      const Result exact = compute(c, torch::kDouble, seed);
      const Result ours = compute(c, dtype, seed);
      EXPECT_TRUE(torch::equal(ours.loss.isnan(), exact.loss.isnan())) << dtype;
      EXPECT_TRUE(torch::equal(ours.loss.isinf(), exact.loss.isinf())) << dtype;
      EXPECT_TRUE(torch::equal(ours.grad.isnan(), exact.grad.isnan()))
          << dtype << ours.grad.isnan().sum(1) << exact.grad.isnan().sum(1);
    }
    // All rows ignored: 0 / 0.
    Case none = make_case(dtype, 4, 6);
    none.target.fill_(-100);
    const Result ignored = compute(none, dtype, torch::ones({}));
    EXPECT_TRUE(ignored.loss.isnan().item<bool>());
    EXPECT_TRUE(torch::equal(ignored.grad, torch::zeros({4, 6}, dtype)));
  }
}

template <typename F>
auto off_and_on(F&& work) {
  uninstall();
  auto off = work();
  install();
  return std::pair(off, work());
}

// The text up to LibTorch's backtrace.
template <typename F>
std::string error_of(F&& work) {
  try {
    work();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "no error";
}

TEST_F(CrossEntropyOp, MistakesGetLibTorchsOwnErrors) {
  const Tensor x = torch::randn({4, 5}), long4 = torch::zeros({4}, torch::kLong);
  const std::vector<std::function<void()>> mistakes = {
      [&] { torch::cross_entropy_loss(x, torch::full({4}, 5, torch::kLong)); },
      [&] { torch::cross_entropy_loss(x, torch::full({4}, -1, torch::kLong)); },
      [&] { torch::cross_entropy_loss(x, torch::zeros({3}, torch::kLong)); },
      [&] { torch::cross_entropy_loss(x, torch::zeros({4}, torch::kInt)); },
      [&] { torch::cross_entropy_loss(x, long4, torch::ones({4})); },
      [&] { torch::cross_entropy_loss(x, long4, torch::ones({5}, torch::kHalf)); },
      [&] { torch::cross_entropy_loss(x, long4, {}, at::Reduction::Mean, -100, 1.5); },
      [&] { torch::cross_entropy_loss(x.to(torch::kLong), long4); },
      [&] { torch::log_softmax(x, 2); },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    for (const bool under_autocast : {false, true}) {
      const auto [off, on] = off_and_on([&] {
        const amp::Autocast region(torch::kCPU, torch::kBFloat16, {.enabled = under_autocast});
        return error_of(mistakes[i]);
      });
      EXPECT_EQ(off, on) << i;
      if (!under_autocast) {
        EXPECT_NE(off, "no error") << i;
      }
    }
  }
}

// Where LibTorch itself computes the last log-softmax, its op is ours.
TEST_F(CrossEntropyOp, OtherCallsGoOnToLibTorch) {
  const std::vector<std::function<Tensor(const Tensor&)>> calls = {
      [](const Tensor& x) { return torch::cross_entropy_loss(x[0], torch::tensor(2)); },
      [](const Tensor& x) { return torch::cross_entropy_loss(x, torch::softmax(x.detach(), 1)); },
      [](const Tensor& x) {
        return torch::cross_entropy_loss(x.view({2, 4, 3, 4}).transpose(1, 2),
                                         torch::ones({2, 4, 4}, torch::kLong));
      },
      [](const Tensor& x) {
        return torch::cross_entropy_loss(x.t(), torch::ones({12}, torch::kLong));
      },
      [](const Tensor& x) { return torch::log_softmax(x, 0).sum(); },
      [](const Tensor& x) { return torch::log_softmax(x.to(torch::kDouble), 1).pow(2).sum(); },
      [](const Tensor& x) {
        return torch::cross_entropy_loss(x.to(torch::kDouble), torch::ones({8}, torch::kLong));
      },
      [](const Tensor& x) {
        return torch::cross_entropy_loss(x.narrow(0, 0, 0), torch::ones({0}, torch::kLong), {},
                                         at::Reduction::Sum);
      },
  };
  // Those of two dimensions consist of a log_softmax that is ours, float16 images of nll_loss2d.
  const std::vector<bool> consists_of_log_softmax = {true,  true,  false, true,
                                                     false, false, false, false};
  constexpr size_t kImages = 2;
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const auto dtype : kDtypes) {
      const Tensor x = torch::randn({8, 12}).to(dtype).requires_grad_();
      const auto [off, on] = off_and_on([&] {
        const Tensor y = calls[i](x);
        return std::vector<Tensor>{y, torch::autograd::grad({y}, {x})[0]};
      });
      for (size_t k = 0; k < off.size(); ++k) {
        if (consists_of_log_softmax[i] || (i == kImages && dtype == torch::kHalf)) {
          EXPECT_TRUE(torch::allclose(off[k], on[k], 2 * unit(dtype), 2 * unit(dtype)))
              << i << " " << dtype << " " << k;
        } else {
          EXPECT_TRUE(torch::equal(off[k], on[k])) << i << " " << dtype << " " << k;
        }
      }
    }
  }
}

TEST_F(CrossEntropyOp, DoubleBackwardIsThatOfLibTorch) {
  for (const double smoothing : {0.0, 0.2}) {
    for (const bool under_autocast : {false, true}) {
      Case c = make_case(torch::kBFloat16, 9, 14);
      c.weight = torch::rand({14});
      c.target[2] = -100;
      const Tensor v = torch::randn({9, 14});
      const auto [off, on] = off_and_on([&] {
        // The logits are a result themselves: the graph goes on below them.
        const Tensor leaf = c.logits.to(torch::kFloat).requires_grad_();
        const Tensor x = under_autocast ? leaf.to(torch::kBFloat16) : leaf * 1.0;
        Tensor loss;
        {
          const amp::Autocast region(torch::kCPU, torch::kBFloat16, {.enabled = under_autocast});
          loss = torch::cross_entropy_loss(x, c.target, c.weight, at::Reduction::Mean, -100,
                                           smoothing);
        }
        const Tensor g = torch::autograd::grad({loss * 3}, {leaf}, {}, /*retain_graph=*/true,
                                               /*create_graph=*/true)[0];
        const Tensor second = torch::autograd::grad({(g * v).sum()}, {leaf})[0];
        return std::vector<Tensor>{g.detach(), second};
      });
      const double rtol = under_autocast ? 0x1p-6 : 1e-4;
      for (size_t i = 0; i < 2; ++i) {
        EXPECT_GT(off[i].abs().max().item<double>(), 1e-3);
        EXPECT_TRUE(torch::allclose(on[i], off[i], rtol, rtol * 0.1))
            << i << " " << under_autocast << (on[i] - off[i]).abs().max();
      }
    }
  }
}

TEST_F(CrossEntropyOp, IsTheSameForAnyNumberOfThreads) {
  const Case c = make_case(torch::kBFloat16, 300, 2000);
  at::set_num_threads(1);
  const Result one = compute(c, torch::kBFloat16, torch::ones({}));
  at::set_num_threads(2);
  const Result two = compute(c, torch::kBFloat16, torch::ones({}));
  EXPECT_TRUE(torch::equal(one.loss, two.loss));
  EXPECT_TRUE(torch::equal(one.grad, two.grad));
}

TEST_F(CrossEntropyOp, WorksWithoutGradientsInInferenceAndOnSlices) {
  const Case c = make_case(torch::kBFloat16, 6, 30);
  const Tensor plain = torch::cross_entropy_loss(c.logits, c.target);
  EXPECT_FALSE(plain.requires_grad());
  {
    const c10::InferenceMode inference;
    const Tensor inside = torch::cross_entropy_loss(c.logits, c.target);
    EXPECT_NEAR(inside.item<float>(), plain.item<float>(), 0.05);
  }
  const Tensor wide = torch::randn({6, 50}).to(torch::kBFloat16);
  wide.narrow(1, 10, 30).copy_(c.logits);
  EXPECT_TRUE(torch::equal(torch::cross_entropy_loss(wide.narrow(1, 10, 30), c.target), plain));
  EXPECT_TRUE(torch::cross_entropy_loss(torch::empty({0, 5}), torch::empty({0}, torch::kLong))
                  .isnan()
                  .item<bool>());
}

TEST_F(CrossEntropyOp, LogSoftmaxIsThatOfFloat64RoundedOnce) {
  for (const auto dtype : kDtypes) {
    for (const int64_t C : {1, 10, 333}) {
      const Tensor start = (torch::randn({4, 5, C}) * 3).to(dtype);
      const Tensor seed = torch::randn({4, 5, C}).to(dtype);
      const auto run = [&](torch::ScalarType in) {
        const Tensor x = start.to(in).detach().requires_grad_();
        const Tensor y = torch::log_softmax(x, -1);
        return std::pair(y.detach(), torch::autograd::grad({y}, {x}, {seed.to(in)})[0]);
      };
      const auto exact = run(torch::kDouble), ours = run(dtype);
      expect_near(ours.first, exact.first, 4e-6, c10::str(dtype, C));
      // The gradient is taken from the rounded result.
      const Tensor exact_back =
          seed.to(torch::kDouble) - torch::exp(ours.first.to(torch::kDouble)) *
                                        seed.to(torch::kDouble).sum(-1, /*keepdim=*/true);
      expect_near(ours.second, exact_back, 3e-5, c10::str(dtype, C));
    }
  }
}

// A policy of the user's stands over our kernel, calls it in other regions, and outlives it.
TEST_F(CrossEntropyOp, APolicyOverItOutlivesTheKernels) {
  const Case c = make_case(torch::kBFloat16, 6, 30);
  const double exact =
      torch::cross_entropy_loss(c.logits.to(torch::kDouble), c.target).item<double>();
  const auto expect_float32 = [&] {
    const amp::Autocast region(torch::kCPU, torch::kBFloat16);
    const Tensor loss = torch::cross_entropy_loss(c.logits, c.target);
    EXPECT_EQ(loss.scalar_type(), torch::kFloat);
    EXPECT_NEAR(loss.item<double>(), exact, 1e-5);
  };
  const auto is_covered = [] {
    for (const ReplacedOp& row : list()) {
      if (row.name == "aten::cross_entropy_loss under autocast") {
        return row.state == OpState::kCovered;
      }
    }
    return false;
  };
  {
    const amp::AutocastPolicy policy =
        amp::AutocastPolicy::libtorch(torch::kCPU).deny("cross_entropy_loss");
    EXPECT_TRUE(is_covered());
    for (int i = 0; i < 2; ++i) {
      {
        const amp::Autocast region(torch::kCPU, torch::kBFloat16, {.policy = policy});
        EXPECT_EQ(torch::cross_entropy_loss(c.logits, c.target).scalar_type(), torch::kBFloat16);
      }
      expect_float32();
      uninstall();
      expect_float32();
      install();
      EXPECT_TRUE(is_covered());
      expect_float32();
    }
    uninstall();
  }
  expect_float32();
  install();
  EXPECT_FALSE(is_covered());
  expect_float32();
}

Tensor theirs(const Tensor& self, const Tensor& /*target*/, const std::optional<Tensor>& /*weight*/,
              int64_t /*reduction*/, const c10::SymInt& /*ignore_index*/, double /*smoothing*/) {
  return torch::full({}, 42.0, self.options());
}

TEST_F(CrossEntropyOp, AnotherLibrarysKernelOnAutogradIsLeftAlone) {
  uninstall();
  const Case c = make_case(torch::kBFloat16, 6, 30);
  for (const auto key : {c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU}) {
    const torchamp::testing::DropWarnings drop;
    const c10::WarningUtils::WarnAlways not_once;  // leaves the one warning to others
    const auto handle = c10::Dispatcher::singleton().registerImpl(
        {"aten::cross_entropy_loss", ""}, key,
        c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(theirs)), std::nullopt, nullptr,
        "registered at theirs.cpp:9");
    install();
    int left_alone = 0;
    for (const ReplacedOp& row : list()) {
      if (row.name.starts_with("aten::cross_entropy_loss") && row.state == OpState::kOthers) {
        EXPECT_EQ(row.other, "registered at theirs.cpp:9");
        ++left_alone;
      }
    }
    EXPECT_EQ(left_alone, key == c10::DispatchKey::AutogradCPU ? 2 : 1);
    {
      const amp::Autocast region(torch::kCPU, torch::kBFloat16);
      EXPECT_EQ(torch::cross_entropy_loss(c.logits, c.target).item<double>(), 42.0);
    }
    uninstall();
  }
}

}  // namespace
}  // namespace torchamp::ops
