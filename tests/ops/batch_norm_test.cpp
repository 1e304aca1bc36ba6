// Batch norm by TorchAmp's kernels: against float64, and against LibTorch's kernel where that is
// what must come back.

#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/install.h"

namespace torchamp::testing {
namespace {

using torch::Tensor;

struct Norm {
  Tensor x, grad, weight, bias, mean, var;
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
};

struct Outcome {
  Tensor y, save_mean, save_invstd, running_mean, running_var, grad_input, grad_weight, grad_bias;
  std::vector<std::pair<const char*, Tensor>> all() const {
    return {{"y", y},
            {"save_mean", save_mean},
            {"save_invstd", save_invstd},
            {"running_mean", running_mean},
            {"running_var", running_var},
            {"grad_input", grad_input},
            {"grad_weight", grad_weight},
            {"grad_bias", grad_bias}};
  }
};

Outcome run(const Norm& norm, std::array<bool, 3> wanted = {true, true, true}) {
  Outcome out;
  if (norm.mean.defined()) out.running_mean = norm.mean.clone();
  if (norm.var.defined()) out.running_var = norm.var.clone();
  std::tie(out.y, out.save_mean, out.save_invstd) =
      torch::native_batch_norm(norm.x, norm.weight, norm.bias, out.running_mean, out.running_var,
                               norm.training, norm.momentum, norm.eps);
  std::tie(out.grad_input, out.grad_weight, out.grad_bias) = torch::native_batch_norm_backward(
      norm.grad, norm.x, norm.weight, out.running_mean, out.running_var, out.save_mean,
      out.save_invstd, norm.training, norm.eps, wanted);
  return out;
}

Norm to_double(const Norm& norm) {
  const auto wide = [](const Tensor& t) { return t.defined() ? t.to(torch::kDouble) : t; };
  return {wide(norm.x),   wide(norm.grad), wide(norm.weight), wide(norm.bias), wide(norm.mean),
          wide(norm.var), norm.training,   norm.momentum,     norm.eps};
}

Norm make(at::IntArrayRef sizes, torch::ScalarType dtype, torch::ScalarType parameters,
          double center = 0.3, double width = 2) {
  const auto format = sizes.size() == 4   ? torch::MemoryFormat::ChannelsLast
                      : sizes.size() == 5 ? torch::MemoryFormat::ChannelsLast3d
                                          : torch::MemoryFormat::Contiguous;
  const int64_t channels = sizes[1];
  return {(torch::randn(sizes) * width + center).to(dtype).contiguous(format),
          torch::randn(sizes).to(dtype).contiguous(format),
          (torch::rand({channels}) + 0.5).to(parameters),
          torch::randn({channels}).to(parameters),
          torch::randn({channels}).to(parameters),
          (torch::rand({channels}) + 0.5).to(parameters)};
}

double max_abs(const Tensor& x) { return x.abs().max().item<double>(); }

// Half a unit in the last place of numbers up to 1.
double rounding(torch::ScalarType dtype) {
  if (dtype == torch::kBFloat16) return 0x1p-9;
  return dtype == torch::kHalf ? 0x1p-12 : 0x1p-25;
}

// Each number within one rounding to its dtype of the exact one, and within `arithmetic` of the
// largest: what float32 loses on the way.
void expect_close(const char* what, const Tensor& got, const Tensor& exact, double arithmetic) {
  ASSERT_EQ(got.defined(), exact.defined()) << what;
  if (!got.defined() || got.numel() == 0) return;
  ASSERT_EQ(got.sizes(), exact.sizes()) << what;
  const Tensor error = (got.to(torch::kDouble) - exact).abs();
  const Tensor bound =
      exact.abs() * (2 * rounding(got.scalar_type())) + arithmetic * max_abs(exact) + 1e-7;
  EXPECT_LE((error - bound).max().item<double>(), 0) << what << ": error " << max_abs(error);
}

// The plainest first.
std::vector<const kernels::KernelTable*> tables_here() {
  std::vector<const kernels::KernelTable*> found;
  for (const kernels::KernelTable* table : kernels::cpu_tables()) {
    if (table->runs_here()) found.push_back(table);
  }
  return found;
}

class BatchNorm : public ::testing::Test {
 protected:
  BatchNorm() : threads_(at::get_num_threads()) { torch::manual_seed(11); }
  ~BatchNorm() override {
    at::set_num_threads(threads_);
    kernels::use_cpu_table(*tables_here().back());
  }
  int threads_;
};

// The numbers of LibTorch's kernel, and those of ours.
std::pair<Outcome, Outcome> both(const Norm& norm,
                                 std::array<bool, 3> wanted = {true, true, true}) {
  const Outcome before = run(norm, wanted);
  const ops::Installation installation;
  return {before, run(norm, wanted)};
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() ||
         (a.scalar_type() == b.scalar_type() && a.strides() == b.strides() && torch::equal(a, b));
}

void check(const Norm& norm, const std::string& what) {
  SCOPED_TRACE(what);
  const auto [libtorch, ours] = both(norm);
  if (norm.training && norm.x.scalar_type() == torch::kFloat) {  // else all may be rounded alike
    EXPECT_FALSE(torch::equal(libtorch.grad_input, ours.grad_input)) << "LibTorch's kernel has run";
  }
  Outcome exact = run(to_double(norm));
  // The backward pass reads statistics as the forward pass has rounded them.
  if (norm.training && ours.save_mean.scalar_type() != torch::kFloat) {
    std::tie(exact.grad_input, exact.grad_weight, exact.grad_bias) =
        torch::native_batch_norm_backward(
            norm.grad.to(torch::kDouble), norm.x.to(torch::kDouble),
            norm.weight.defined() ? norm.weight.to(torch::kDouble) : Tensor(), {}, {},
            ours.save_mean.to(torch::kDouble), ours.save_invstd.to(torch::kDouble), true, norm.eps,
            {true, true, true});
  }
  const auto ours_all = ours.all(), exact_all = exact.all(), libtorch_all = libtorch.all();
  for (size_t i = 0; i < ours_all.size(); ++i) {
    const Tensor &got = ours_all[i].second, &other = libtorch_all[i].second;
    expect_close(ours_all[i].first, got, exact_all[i].second, 2e-6);
    ASSERT_EQ(got.defined(), other.defined());
    if (!got.defined()) continue;
    EXPECT_EQ(got.scalar_type(), other.scalar_type()) << ours_all[i].first;
    EXPECT_EQ(got.sizes(), other.sizes()) << ours_all[i].first;
    EXPECT_EQ(got.strides(), other.strides()) << ours_all[i].first;
  }
}

const torch::ScalarType kDtypes[] = {torch::kFloat, torch::kBFloat16, torch::kHalf};

std::vector<std::vector<int64_t>> shapes() {
  return {{4, 64, 16, 16}, {2, 16, 24, 40}, {3, 80, 9, 32},     {8, 24, 12, 12}, {16, 3, 20, 20},
          {4, 100, 8, 8},  {1, 512, 7, 7},  {2, 32, 6, 10, 12}, {700, 48},       {64, 2, 32, 32}};
}

TEST_F(BatchNorm, EqualsFloat64InEveryShapeDtypeTableAndThread) {
  const auto tables = tables_here();
  for (const kernels::KernelTable* table : tables) {
    kernels::use_cpu_table(*table);
    for (const auto dtype : kDtypes) {
      for (const auto parameters : {torch::kFloat, dtype}) {
        for (const auto& sizes : shapes()) {
          // The tables give the same bits (below); the slow ones take the small shapes.
          if (table != tables.back() && sizes[0] * sizes[1] > 64) continue;
          for (const bool training : {true, false}) {
            at::set_num_threads(1 + static_cast<int>(sizes[1] % 3 == 1));
            Norm norm = make(sizes, dtype, parameters);
            norm.training = training;
            std::string what = std::string(table->name) + (training ? " training " : " eval ") +
                               toString(dtype) + " " + toString(parameters);
            for (const int64_t size : sizes) what += " " + std::to_string(size);
            check(norm, what);
          }
        }
      }
    }
  }
}

TEST_F(BatchNorm, ParametersMayBeAbsentAndMomentumAndEpsAreHeard) {
  for (const auto dtype : kDtypes) {
    Norm norm = make({4, 32, 16, 16}, dtype, torch::kFloat);
    norm.momentum = 0.7;
    norm.eps = 0.5;
    check(norm, "momentum and eps");
    norm.momentum = 0;
    norm.bias = Tensor();
    check(norm, "no bias");
    norm.weight = Tensor();
    check(norm, "no weight");
    norm.training = false;
    check(norm, "eval without weight");
    norm.training = true;
    norm.var = norm.mean = Tensor();
    check(norm, "no parameters at all");
  }
}

TEST_F(BatchNorm, ComputesTheGradientsThatAreAskedFor) {
  for (const bool training : {true, false}) {
    Norm norm = make({4, 32, 16, 16}, torch::kBFloat16, torch::kFloat);
    norm.training = training;
    const ops::Installation installation;
    const Outcome full = run(norm);
    for (int mask = 0; mask < 8; ++mask) {
      const std::array<bool, 3> wanted = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
      const Outcome some = run(norm, wanted);
      EXPECT_TRUE(same_bits(some.grad_input, wanted[0] ? full.grad_input : Tensor())) << mask;
      EXPECT_TRUE(same_bits(some.grad_weight, wanted[1] ? full.grad_weight : Tensor())) << mask;
      EXPECT_TRUE(same_bits(some.grad_bias, wanted[2] ? full.grad_bias : Tensor())) << mask;
    }
  }
}

// Squares of numbers around 4000 fill float32; the variance is what is left of them.
TEST_F(BatchNorm, StatisticsAreAtLeastAsExactAsLibTorchs) {
  for (const double center : {0.0, 30.0, 4000.0, -1e5}) {
    Norm norm = make({8, 64, 56, 56}, torch::kFloat, torch::kFloat, center, 0.5);
    norm.momentum = 1;                  // the running statistics are the batch's
    norm.x.narrow(0, 3, 2).add_(0.25);  // and not the same everywhere
    const auto [libtorch, ours] = both(norm);
    const Outcome exact = run(to_double(norm));
    const auto error = [](const Tensor& got, const Tensor& want) {
      return ((got.to(torch::kDouble) - want) / want).abs().max().item<double>();
    };
    // Float32 holds a number to 2^-24 of it.
    EXPECT_LE(error(ours.running_var, exact.running_var),
              std::max(0x1p-22, error(libtorch.running_var, exact.running_var)))
        << center;
    EXPECT_LE(error(ours.running_var, exact.running_var), 1e-6) << center;
    EXPECT_LE(error(ours.save_invstd, exact.save_invstd), 1e-6) << center;
    if (center != 0) {
      EXPECT_LE(error(ours.save_mean, exact.save_mean), 0x1p-24) << center;
    }
  }
}

// Sums are taken around the first rows: here around 100, of numbers near 1.
TEST_F(BatchNorm, FirstRowsFarFromTheOthersDoNoHarm) {
  Norm norm = make({8, 64, 28, 28}, torch::kFloat, torch::kFloat, 1, 1e-3);
  norm.momentum = 1;
  norm.x.narrow(0, 0, 1).narrow(2, 0, 1).narrow(3, 0, 9).fill_(100);
  const auto [libtorch, ours] = both(norm);
  const Tensor exact = run(to_double(norm)).running_var;
  const auto error = [&](const Tensor& got) {
    return max_abs((got.to(torch::kDouble) - exact) / exact);
  };
  EXPECT_LE(error(ours.running_var), 64 * 0x1p-24 * 4)  // a block's sums, and what cancels in it
      << "LibTorch: " << error(libtorch.running_var);
}

TEST_F(BatchNorm, GivesTheSameBitsInEveryTableAndOnAnyNumberOfThreads) {
  const ops::Installation installation;
  for (const auto dtype : kDtypes) {
    for (const auto& sizes : shapes()) {
      const Norm norm = make(sizes, dtype, torch::kFloat);
      std::vector<Outcome> outcomes;
      for (const kernels::KernelTable* table : tables_here()) {
        kernels::use_cpu_table(*table);
        for (const int threads : {1, 2, 5}) {
          at::set_num_threads(threads);
          outcomes.push_back(run(norm));
          const auto first = outcomes.front().all(), now = outcomes.back().all();
          for (size_t i = 0; i < first.size(); ++i) {
            EXPECT_TRUE(torch::equal(first[i].second, now[i].second))
                << first[i].first << " " << table->name << " " << threads << " " << dtype;
          }
        }
      }
    }
  }
}

TEST_F(BatchNorm, InfAndNanSpoilTheirChannelAlone) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    for (const auto dtype : kDtypes) {
      Norm norm = make({4, 32, 16, 16}, dtype, torch::kFloat);
      norm.x[2][5][3][3] = bad;
      norm.grad[1][9][0][0] = bad;
      const auto [libtorch, ours] = both(norm);
      const auto ours_all = ours.all(), libtorch_all = libtorch.all();
      for (size_t i = 0; i < ours_all.size(); ++i) {
        EXPECT_TRUE(torch::equal(ours_all[i].second.isfinite(), libtorch_all[i].second.isfinite()))
            << ours_all[i].first << " " << bad;
      }
    }
  }
}

TEST_F(BatchNorm, WhatIsNotTheFastCaseKeepsLibTorchsBits) {
  std::vector<std::pair<const char*, Norm>> cases;
  cases.emplace_back("too small", make({2, 16, 4, 4}, torch::kFloat, torch::kFloat));
  cases.emplace_back("float64", to_double(make({4, 32, 16, 16}, torch::kFloat, torch::kFloat)));
  Norm norm = make({4, 32, 16, 16}, torch::kFloat, torch::kFloat);
  norm.x = norm.x.contiguous();
  norm.grad = norm.grad.contiguous();
  cases.emplace_back("NCHW", norm);
  norm = make({4, 32, 16, 16}, torch::kFloat, torch::kFloat);
  norm.x = norm.x.transpose(2, 3);
  norm.grad = norm.grad.narrow(3, 0, 16).transpose(2, 3).contiguous();
  cases.emplace_back("strides", norm);
  norm = make({4, 32, 16, 16}, torch::kFloat, torch::kFloat);
  norm.weight = torch::rand({64}).slice(0, 0, 64, 2);
  cases.emplace_back("strided weight", norm);
  norm = make({4, 7, 33, 33}, torch::kFloat, torch::kFloat);
  cases.emplace_back("rows that cannot be joined", norm);
  for (const auto& [what, each] : cases) {
    const auto [libtorch, ours] = both(each);
    const auto ours_all = ours.all(), libtorch_all = libtorch.all();
    for (size_t i = 0; i < ours_all.size(); ++i) {
      EXPECT_TRUE(same_bits(ours_all[i].second, libtorch_all[i].second))
          << what << " " << ours_all[i].first;
    }
  }
}

TEST_F(BatchNorm, MistakesGetLibTorchsOwnErrors) {
  const auto error_of = [](const Norm& norm) -> std::string {
    try {
      run(norm);
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  Norm norm = make({4, 32, 16, 16}, torch::kBFloat16, torch::kFloat);
  norm.bias = norm.bias.to(torch::kBFloat16);
  Norm without_variance = make({4, 32, 16, 16}, torch::kFloat, torch::kFloat);
  without_variance.var = Tensor();
  const std::string before = error_of(norm), before_without = error_of(without_variance);
  EXPECT_NE(before, "");
  EXPECT_NE(before_without, "");
  const ops::Installation installation;
  EXPECT_EQ(error_of(norm), before);
  EXPECT_EQ(error_of(without_variance), before_without);
}

// A module under autocast: 16-bit activations beside float32 parameters and statistics.
TEST_F(BatchNorm, AModuleUnderAutocastIsAsExactAsWithLibTorchsKernels) {
  const Tensor x = torch::randn({4, 16, 20, 20}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto step = [&](torch::ScalarType dtype) {
    torch::manual_seed(2);
    torch::nn::BatchNorm2d norm(16);
    norm->to(dtype == torch::kBFloat16 ? torch::kFloat : dtype);
    const Tensor input = x.to(torch::kBFloat16).to(dtype).requires_grad_();
    at::autocast::set_autocast_enabled(at::kCPU, dtype == torch::kBFloat16);
    Tensor y = norm->forward(input);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), dtype);
    y.pow(2).mul(x.to(torch::kBFloat16).to(dtype)).sum().backward();
    return std::vector<Tensor>{y.detach(),        input.grad(),       norm->weight.grad(),
                               norm->bias.grad(), norm->running_mean, norm->running_var};
  };
  const auto exact = step(torch::kDouble), libtorch = step(torch::kBFloat16);
  const ops::Installation installation;
  const auto ours = step(torch::kBFloat16);
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(ours[i].scalar_type(), libtorch[i].scalar_type());
    const auto error = [&](const Tensor& got) { return (got - exact[i]).norm().item<double>(); };
    EXPECT_LE(error(ours[i]), 1.05 * error(libtorch[i]) + 0x1p-24 * exact[i].norm().item<double>())
        << i;
  }
}

TEST_F(BatchNorm, DoubleBackwardEqualsLibTorchs) {
  const Tensor x = torch::randn({4, 16, 20, 20}).contiguous(torch::MemoryFormat::ChannelsLast);
  const auto penalty = [&] {
    const Tensor input = x.clone().requires_grad_();
    const Tensor weight = torch::linspace(0.5, 1.5, 16).requires_grad_();
    const Tensor y = torch::batch_norm(input, weight, {}, {}, {}, true, 0.1, 1e-5, false);
    const Tensor g = torch::autograd::grad({y.pow(3).sum()}, {input}, {}, true, true)[0];
    g.pow(2).sum().backward();
    return std::vector<Tensor>{input.grad(), weight.grad()};
  };
  const auto before = penalty();
  const ops::Installation installation;
  const auto ours = penalty();
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_LE(max_abs(ours[i] - before[i]), 1e-4 * max_abs(before[i])) << i;
  }
}

}  // namespace
}  // namespace torchamp::testing
