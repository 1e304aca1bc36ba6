#include "torchamp/ops/registered_kernels.h"

#include <gtest/gtest.h>

namespace torchamp::ops::detail {
namespace {

// Lines as LibTorch 2.11 and 2.15 print them.
constexpr const char* kHead =
    "name: aten::mm\n"
    "schema: aten::mm(Tensor self, Tensor mat2) -> Tensor\n"
    "debug: registered at /build/aten/src/ATen/RegisterSchema.cpp:6\n"
    "alias analysis kind: FROM_SCHEMA\n"
    "Meta: registered at /python/_meta_registrations.py:53 :: (none) [ boxed ]\n"
    "Meta (inactive): registered at /build/aten/src/ATen/RegisterMeta_0.cpp:8510 :: (none) [ boxed "
    "]\n";

std::string state(const std::string& lines) { return kHead + lines; }

TEST(RegisteredKernels, OfLibTorchAloneAreNobodyElses) {
  EXPECT_EQ(others_kernel(state("CPU: registered at /build/aten/src/ATen/RegisterCPU_0.cpp:3246 :: "
                                "(Tensor _0, Tensor _1) -> Tensor _0 [ boxed unboxed ]\n")),
            "");
  EXPECT_EQ(
      others_kernel(state("CompositeExplicitAutograd[alias]: registered at "
                          "/build/aten/src/ATen/RegisterCompositeExplicitAutograd_0.cpp:30 :: "
                          "(Tensor _0) -> Tensor _0 [ boxed ]\n")),
      "");
  EXPECT_EQ(others_kernel(state("")), "");
}

TEST(RegisteredKernels, OfAnotherLibraryAreFoundOnTheKeyAndOnItsAliases) {
  EXPECT_EQ(others_kernel(
                state("CPU: registered at theirs.cpp:4 :: (none) [ boxed ]\n"
                      "CPU (inactive): registered at /build/aten/src/ATen/RegisterCPU_0.cpp:3246 "
                      ":: (none) [ boxed unboxed ]\n")),
            "registered at theirs.cpp:4");
  EXPECT_EQ(others_kernel(
                state("CPU: registered at theirs.cpp:4 :: (none) [ boxed ]\n"
                      "CompositeExplicitAutograd[alias]: registered at "
                      "/build/aten/src/ATen/RegisterCompositeExplicitAutograd_0.cpp:30 :: (none) [ "
                      "boxed ]\n")),
            "registered at theirs.cpp:4");
  EXPECT_EQ(others_kernel(state(
                "CompositeExplicitAutograd[alias]: registered at theirs.cpp:5 :: (none)\n"
                "CompositeExplicitAutograd[alias] (inactive): registered at "
                "/build/aten/src/ATen/RegisterCompositeExplicitAutograd_0.cpp:30 :: (none)\n")),
            "registered at theirs.cpp:5");
}

// A fork of LibTorch's file that was built elsewhere: what it covers gives it away.
TEST(RegisteredKernels, OneThatCoversAnotherIsNoneOfLibTorchsOwn) {
  EXPECT_EQ(
      others_kernel(state("CPU: registered at /fork/aten/src/ATen/Mine.cpp:1 :: (none)\n"
                          "CPU (inactive): registered at /build/aten/src/ATen/RegisterCPU_0.cpp:32 "
                          ":: (none)\n")),
      "registered at /fork/aten/src/ATen/Mine.cpp:1");
}

// A kernel of ours on a key takes the calls of all keys below it.
TEST(RegisteredKernels, OnKeysAboveCountForOursThere) {
  using Key = c10::DispatchKey;
  const std::string autograd = state("Autograd[alias]: registered at theirs.cpp:4 :: (none)\n");
  EXPECT_EQ(others_kernel(autograd, Key::CPU), "");
  EXPECT_EQ(others_kernel(autograd, Key::AutogradCPU), "registered at theirs.cpp:4");
  EXPECT_EQ(others_kernel(autograd, Key::AutocastCPU), "registered at theirs.cpp:4");
  const std::string autocast = state(
      "AutocastCPU: registered at theirs.cpp:5 :: (none)\n"
      "AutocastCPU (inactive): registered at /build/aten/src/ATen/autocast_mode.cpp:338 :: (n)\n");
  EXPECT_EQ(others_kernel(autocast, Key::AutogradCPU), "");
  EXPECT_EQ(others_kernel(autocast, Key::AutocastCPU), "registered at theirs.cpp:5");
  const std::string libtorchs = state(
      "AutocastCPU: registered at /build/aten/src/ATen/autocast_mode.cpp:338 :: (none)\n"
      "AutogradCPU: registered at /build/torch/csrc/autograd/generated/VariableType_0.cpp:1 :: "
      "(n)\n");
  EXPECT_EQ(others_kernel(libtorchs, Key::AutocastCPU), "");
}

}  // namespace
}  // namespace torchamp::ops::detail
