// Kernels on the dispatcher: put on, taken off, switched off, beside those of other libraries.

#include "torchamp/ops/install.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>

#include <gtest/gtest.h>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/choices.h"

namespace torchamp::ops {
namespace {

using torch::Tensor;

class Install : public ::testing::Test {
 protected:
  Install() {
    torch::manual_seed(3);
    setenv("TORCHAMP_OPS", "all", 1);  // whatever this CPU needs
  }
  ~Install() override {
    unsetenv("TORCHAMP_OPS");
    uninstall();
  }
};

ReplacedOp row(const std::string& name) {
  for (const ReplacedOp& each : list()) {
    if (each.name == name) return each;
  }
  ADD_FAILURE() << name << " is not in the list";
  return {};
}

// Whether our kernel computes: sums of fp16 products by LibTorch's own kernel differ from those
// rounded once in some of 3000 places. With the tables in plain C++ all products are widened, small
// ones too, whose own kernel adds in another order.
bool rounds_once() {
  struct PlainTables {
    PlainTables() { kernels::use_cpu_table(**kernels::cpu_tables().begin()); }
    ~PlainTables() { kernels::use_cpu_table(before); }
    const kernels::KernelTable& before = kernels::cpu_table();
  } plain_tables;
  torch::manual_seed(5);
  const Tensor a = torch::randn({60, 500}).to(torch::kHalf);
  const Tensor b = torch::randn({500, 50}).to(torch::kHalf);
  return torch::equal(torch::mm(a, b),
                      torch::mm(a.to(torch::kFloat), b.to(torch::kFloat)).to(torch::kHalf)) &&
         torch::equal(
             torch::addmv(b[0], b.t(), a[0]),
             torch::addmv(b[0].to(torch::kFloat), b.t().to(torch::kFloat), a[0].to(torch::kFloat))
                 .to(torch::kHalf));
}

Tensor theirs(const Tensor& a, const Tensor& b) {
  return torch::full({a.size(0), b.size(1)}, 42.0, a.options());
}

c10::RegistrationHandleRAII register_theirs() {
  return c10::Dispatcher::singleton().registerImpl(
      {"aten::mm", ""}, c10::DispatchKey::CPU,
      c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(theirs)), std::nullopt, nullptr,
      "registered at theirs.cpp:7");
}

TEST_F(Install, PutsKernelsOnAndTakesThemOffAgain) {
  EXPECT_FALSE(installed());
  EXPECT_EQ(row("aten::mm").state, OpState::kLibTorch);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(install());
    EXPECT_TRUE(install());
    EXPECT_TRUE(installed());
    EXPECT_EQ(row("aten::avg_pool3d").state, OpState::kReplaced);
    EXPECT_NO_THROW(torch::avg_pool3d(torch::ones({1, 2, 2, 2}, torch::kHalf), 2));
    uninstall();
    EXPECT_FALSE(installed());
    EXPECT_EQ(row("aten::avg_pool3d").state, OpState::kLibTorch);
    EXPECT_THROW(torch::avg_pool3d(torch::ones({1, 2, 2, 2}, torch::kHalf), 2), c10::Error);
    uninstall();
  }
}

TEST_F(Install, EveryRowSaysWhatWhyAndWhatBecameOfIt) {
  install();
  const std::vector<ReplacedOp> rows = list();
  EXPECT_GE(rows.size(), 40U);
  for (const ReplacedOp& each : rows) {
    EXPECT_TRUE(each.name.starts_with("aten::")) << each.name;
    EXPECT_FALSE(each.reason.empty()) << each.name;
    EXPECT_FALSE(each.dtypes.empty());
    EXPECT_EQ(each.state, OpState::kReplaced)
        << each.name << " is " << to_string(each.state) << " " << each.other;
  }
}

TEST_F(Install, IsSilentAndLeavesLibTorchsOneWarningToOthers) {
  ::testing::internal::CaptureStderr();
  install();
  uninstall();
  install();
  uninstall();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  { const auto handle = register_theirs(); }
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("Overriding a previously registered"),
            std::string::npos);
}

TEST_F(Install, IsSwitchedOffByTheEnvironment) {
  setenv("TORCHAMP_OPS", "off", 1);
  EXPECT_FALSE(install());
  {
    const Installation installation;
    EXPECT_FALSE(installed());
  }
  setenv("TORCHAMP_OPS", "on", 1);
  EXPECT_TRUE(install());
  uninstall();
  setenv("TORCHAMP_OPS", "", 1);
  EXPECT_TRUE(install());
  // Without "all", what the CPU does itself is left to LibTorch; nothing else differs.
  for (const ReplacedOp& each : list()) {
    EXPECT_TRUE(each.state == OpState::kReplaced || each.state == OpState::kNotNeeded) << each.name;
  }
}

TEST_F(Install, RefusesAnUnknownValueOfTheSwitch) {
  setenv("TORCHAMP_OPS", "no\n", 1);
  EXPECT_EQ(environment_error(),
            "[TORCHAMP_OPS] The environment variable TORCHAMP_OPS is 'no\\n'; on, off, all or no "
            "value is accepted.");
  EXPECT_THROW(install(), base::UsageError);
  EXPECT_THROW(Installation(), base::UsageError);
  EXPECT_FALSE(installed());
}

TEST_F(Install, AnInstallationLastsAsLongAsItLives) {
  {
    const Installation first;
    {
      const Installation second;
      EXPECT_TRUE(installed());
    }
    EXPECT_TRUE(installed());
    install();
    uninstall();
    EXPECT_TRUE(installed());
  }
  EXPECT_FALSE(installed());
  install();
  { const Installation third; }
  EXPECT_TRUE(installed());
}

TEST_F(Install, AnotherLibrarysKernelIsLeftAlone) {
  const Tensor a = torch::ones({2, 3}), b = torch::ones({3, 4});
  {
    const auto handle = register_theirs();
    install();
    EXPECT_EQ(row("aten::mm").state, OpState::kOthers);
    EXPECT_EQ(row("aten::mm").other, "registered at theirs.cpp:7");
    EXPECT_EQ(row("aten::bmm").state, row("aten::addmm").state);
    EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 42.0F);
    EXPECT_EQ(torch::mm(a.to(torch::kHalf), b.to(torch::kHalf))[0][0].item<float>(), 42.0F);
    uninstall();
    EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 42.0F);
  }
  EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 3.0F);
  install();
  EXPECT_EQ(row("aten::mm").other, "");
}

TEST_F(Install, AKernelThatIsPutOverOursRunsAndIsListed) {
  install();
  const Tensor a = torch::ones({2, 3}, torch::kHalf), b = torch::ones({3, 4}, torch::kHalf);
  {
    const auto handle = register_theirs();
    EXPECT_EQ(row("aten::mm").state, OpState::kCovered);
    EXPECT_EQ(row("aten::mm").other, "registered at theirs.cpp:7");
    EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 42.0F);
    uninstall();  // ours goes from beneath theirs
    EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 42.0F);
  }
  EXPECT_EQ(torch::mm(a, b)[0][0].item<float>(), 3.0F);
}

// Runs work with the kernels off and on.
template <typename F>
auto off_and_on(F&& work) {
  uninstall();
  auto off = work();
  install();
  return std::pair(off, work());
}

TEST_F(Install, OtherDtypesKeepEveryBit) {
  const NoChoices bfloat16_by_libtorch;
  for (const auto dtype : {torch::kFloat, torch::kBFloat16, torch::kDouble}) {
    const auto make = [&](at::IntArrayRef sizes) {
      return torch::randn(sizes).to(dtype).requires_grad_();
    };
    const Tensor x = make({2, 3, 9, 9}), w = make({4, 3, 3, 3}), a = make({7, 20}),
                 b = make({20, 5}), c = make({5}), q = make({1, 2, 10, 8}),
                 p = make({1, 2, 6, 6, 6});
    const auto [off, on] = off_and_on([&] {
      std::vector<Tensor> out = {torch::conv2d(x, w), torch::addmm(c, a, b), torch::mm(a, b),
                                 torch::scaled_dot_product_attention(q, q, q),
                                 torch::adaptive_avg_pool2d(x, {2, 2})};
      Tensor sum = torch::zeros({}, dtype);
      for (const Tensor& each : out) sum = sum + each.pow(2).sum();
      for (const Tensor& g : torch::autograd::grad({sum}, {x, w, a, b, c, q})) out.push_back(g);
      return out;
    });
    for (size_t i = 0; i < off.size(); ++i) EXPECT_TRUE(torch::equal(off[i], on[i])) << dtype << i;
  }
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

TEST_F(Install, MistakesGetLibTorchsOwnErrors) {
  const auto h = [](at::IntArrayRef sizes) { return torch::ones(sizes, torch::kHalf); };
  const auto f = [](at::IntArrayRef sizes) { return torch::ones(sizes); };
  const std::vector<std::function<void()>> mistakes = {
      [&] {
        torch::mm(h({2, 3}), h({4, 5}));
      },
      [&] {
        torch::mm(h({2, 3, 1}), h({4, 5}));
      },
      [&] {
        torch::mm(h({2, 3}), f({3, 5}));
      },
      [&] {
        torch::mm(f({2, 3}), h({3, 5}));
      },
      [&] {
        torch::addmm(h({7}), h({2, 3}), h({3, 5}));
      },
      [&] {
        torch::addmm(f({5}), h({2, 3}), h({3, 5}));
      },
      [&] {
        h({5}).addmm_(h({2, 3}), h({3, 5}));
      },
      [&] {
        torch::bmm(h({2, 3, 4}), h({3, 4, 5}));
      },
      [&] {
        torch::baddbmm(h({9}), h({2, 3, 4}), h({2, 4, 5}));
      },
      [&] {
        torch::conv2d(h({1, 3, 8, 8}), h({4, 2, 3, 3}));
      },
      [&] {
        torch::conv2d(h({1, 3, 8, 8}), f({4, 3, 3, 3}));
      },
      [&] {
        torch::conv2d(h({1, 3, 2, 2}), h({4, 3, 3, 3}));
      },
      [&] { torch::binary_cross_entropy(h({3}), h({4})); },
      [&] {
        torch::addmv(h({7}), h({2, 3}), h({4}));
      },
      [&] {
        torch::adaptive_avg_pool2d(h({3}), {2, 2});
      },
  };
  for (size_t i = 0; i < mistakes.size(); ++i) {
    const auto [off, on] = off_and_on([&] { return error_of(mistakes[i]); });
    EXPECT_EQ(off, on) << i;
    EXPECT_NE(off, "no error") << i;
  }
}

TEST_F(Install, WorksInInferenceModeWithoutGradientsAndOnMeta) {
  install();
  const Tensor a = torch::randn({5, 8}).to(torch::kHalf), b = torch::randn({8, 3}).to(torch::kHalf);
  const Tensor plain = torch::mm(a, b);
  {
    const torch::NoGradGuard no_grad;
    EXPECT_TRUE(torch::equal(torch::mm(a, b), plain));
    EXPECT_FALSE(torch::mm(a.clone().requires_grad_(), b).requires_grad());
  }
  {
    const c10::InferenceMode inference;
    const Tensor inside = torch::mm(a.clone(), b.clone());
    EXPECT_TRUE(inside.is_inference());
    EXPECT_TRUE(torch::equal(inside, plain));
    const Tensor image = torch::randn({1, 3, 8, 8}).to(torch::kHalf);
    EXPECT_TRUE(torch::conv2d(image, torch::ones({2, 3, 3, 3}, torch::kHalf)).is_inference());
  }
  const auto on_meta = torch::TensorOptions(torch::kHalf).device(torch::kMeta);
  const Tensor meta = torch::mm(torch::empty({5, 8}, on_meta), torch::empty({8, 3}, on_meta));
  EXPECT_TRUE(meta.is_meta());
  EXPECT_EQ(meta.sizes(), at::IntArrayRef({5, 3}));
}

TEST_F(Install, AutocastDoesNotRoundInsideOfAKernel) {
  install();
  const Tensor x = torch::randn({2, 3, 9, 9}).to(torch::kHalf);
  const Tensor w = torch::randn({4, 3, 3, 3}).to(torch::kHalf);
  const Tensor plain = torch::conv2d(x, w);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const auto backward =
      torch::convolution_backward(plain, x, w, at::OptionalIntArrayRef(), {1, 1}, {0, 0}, {1, 1},
                                  false, {0, 0}, 1, {true, true, false});
  const Tensor inside = torch::conv2d(x.to(torch::kFloat), w.to(torch::kFloat));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  EXPECT_TRUE(torch::equal(inside, plain));
  const auto outside =
      torch::convolution_backward(plain, x, w, at::OptionalIntArrayRef(), {1, 1}, {0, 0}, {1, 1},
                                  false, {0, 0}, 1, {true, true, false});
  EXPECT_TRUE(torch::equal(std::get<0>(backward), std::get<0>(outside)));
  EXPECT_TRUE(torch::equal(std::get<1>(backward), std::get<1>(outside)));
}

// A graph that one state recorded runs in the other.
TEST_F(Install, GraphsOutliveASwitch) {
  const Tensor x = torch::randn({6, 10}).to(torch::kHalf).requires_grad_();
  const Tensor w = torch::randn({4, 10}).to(torch::kHalf).requires_grad_();
  const auto loss = [&] { return torch::linear(x, w).pow(2).sum(); };
  install();
  const Tensor recorded_on = loss();
  const auto expected = torch::autograd::grad({loss()}, {x, w});
  uninstall();
  const Tensor recorded_off = loss();
  const auto ran_off = torch::autograd::grad({recorded_on}, {x, w});
  install();
  const auto ran_on = torch::autograd::grad({recorded_off}, {x, w});
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(torch::allclose(ran_off[i], expected[i], 0.01, 0.1));
    EXPECT_TRUE(torch::allclose(ran_on[i], expected[i], 0.01, 0.1));
  }
}

TEST_F(Install, ManyThreadsMaySwitchWhileOthersCompute) {
  const Tensor a = torch::randn({20, 30}), b = torch::randn({30, 10});
  const Tensor expected = torch::mm(a, b);
  const Tensor half_a = a.to(torch::kHalf), half_b = b.to(torch::kHalf);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 50; ++k) {
        if (i < 2) {
          install();
          list();
          uninstall();
        } else {
          if (!torch::equal(torch::mm(a, b), expected)) ++wrong;
          if (!torch::allclose(torch::mm(half_a, half_b).to(torch::kFloat), expected, 0.01, 0.1)) {
            ++wrong;
          }
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_FALSE(installed());
  install();
  EXPECT_TRUE(rounds_once());
}

}  // namespace
}  // namespace torchamp::ops
