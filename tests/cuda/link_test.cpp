// The compiled CUDA kernels link and load, also on a machine without a GPU or a driver.

#include <cstring>

#include <gtest/gtest.h>

#include "torchamp/kernels/cuda/step.h"

namespace cuda = torchamp::kernels::cuda;

namespace {

TEST(CudaLink, KernelsOfThisBuildAreThere) {
  EXPECT_EQ(cuda::kernels().why_absent, nullptr);
  EXPECT_NE(cuda::kernels().update, nullptr);
}

TEST(CudaLink, AQuestionToTheRuntimeIsAnsweredInWordsAtMost) {
  bool capturing = true;
  const char* error = cuda::kernels().is_capturing(nullptr, &capturing);
  if (error == nullptr) {  // there is a device
    EXPECT_FALSE(capturing);
  } else {
    EXPECT_GT(std::strlen(error), 10U) << error;
  }
}

}  // namespace
