// The list of CPU kernels, and what a wrong TORCHAMP_CPU does to whoever needs them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/multi_tensor/fused_step.h"
#include "torchamp/torchamp.h"

namespace torchamp::multi_tensor {
namespace {

TEST(CpuKernels, OneIsInUseAndRunsHere) {
  const std::vector<CpuKernels> list = list_cpu_kernels();
  ASSERT_FALSE(list.empty());
  EXPECT_EQ(list.front().name, "scalar");
  EXPECT_TRUE(list.front().runs_here);
  int used = 0;
  for (const CpuKernels& each : list) {
    used += each.in_use ? 1 : 0;
    EXPECT_TRUE(each.runs_here || !each.in_use) << each.name;
  }
  EXPECT_EQ(used, 1);
  EXPECT_FALSE(cpu_kernels_error());
}

// The roots as kernels take them, in place.
void take_roots(const kernels::RootFunctions& roots, at::Tensor& values) {
  float* x = values.data_ptr<float>();
  if (roots.floats_are_estimated) {
    cpu_kernels().estimated_roots(values.numel(), x);
  } else if (roots.of_floats != nullptr) {
    roots.of_floats(values.numel(), x);
  } else {
    for (int64_t i = 0; i < values.numel(); ++i) x[i] = std::sqrt(x[i]);
  }
}

// Every 61st number from 0 to inf; with TORCHAMP_SLOW_TESTS all of them.
TEST(LibTorchRoots, AreAtSqrtBitForBit) {
  const uint32_t step = std::getenv("TORCHAMP_SLOW_TESTS") != nullptr ? 1 : 61;
  const kernels::RootFunctions roots = libtorch_roots();
  constexpr int64_t kBlock = 1 << 20;
  for (uint64_t begin = 0; begin <= 0x7FFFFFFF; begin += kBlock * step) {
    at::Tensor ours = at::empty({kBlock});
    for (int64_t i = 0; i < kBlock; ++i) {
      const uint64_t bits = std::min<uint64_t>(begin + static_cast<uint64_t>(i) * step, 0x7F800000);
      ours.data_ptr<float>()[i] = std::bit_cast<float>(static_cast<uint32_t>(bits));
    }
    const at::Tensor libtorch = at::sqrt(ours);
    take_roots(roots, ours);
    ASSERT_TRUE(at::equal(ours, libtorch)) << "from bits " << begin;
  }
}

// One step of a fused optimizer in a process of its own; prints the error and the weight.
[[noreturn]] void step_with_kernels(const char* name) {
  setenv("TORCHAMP_CPU", name, 1);
  auto weight = torch::ones({3}).requires_grad_();
  weight.mutable_grad() = torch::ones({3});
  optim::SGD sgd({weight}, optim::SGDOptions(0.5));
  std::string error = "no error";
  try {
    sgd.step();
  } catch (const c10::ValueError& failure) {
    error = failure.what_without_backtrace();
  }
  std::fprintf(stderr, "%s; weight %g", error.c_str(), weight[0].item<double>());
  std::exit(0);
}

TEST(CpuKernelsDeathTest, AWrongNameIsAnErrorAtTheFirstUse) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      step_with_kernels("avx9"), testing::ExitedWithCode(0),
      "TORCHAMP_CPU is 'avx9', a name that no kernels have; scalar.* is accepted.*weight 1$");
  EXPECT_EXIT(step_with_kernels("scalar"), testing::ExitedWithCode(0), "no error; weight 0.5");
}

}  // namespace
}  // namespace torchamp::multi_tensor
