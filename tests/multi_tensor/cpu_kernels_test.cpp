// The list of CPU kernels, and what a wrong TORCHAMP_CPU does to whoever needs them.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

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
