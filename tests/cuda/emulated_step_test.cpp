// What a fused step on a GPU does around its kernels, where the host says that a graph is captured.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "cuda/device_under_test.h"
#include "cuda/emulated/step_kernels.h"
#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

class EmulatedStep : public ::testing::Test {
 protected:
  void SetUp() override {
    device_under_test::take_kernels(true);
    parameter_ = torch::ones({100}).requires_grad_();
    parameter_.mutable_grad() = torch::ones({100});
    optimizer_ = std::make_unique<optim::AdamW>(std::vector{parameter_}, optim::AdamWOptions(0.1));
  }
  void TearDown() override {
    device_under_test::set_capturing(false);
    device_under_test::take_kernels(false);
  }
  int64_t launches_of_step() {
    emulated::num_launches = 0;
    optimizer_->step();
    return emulated::num_launches;
  }

  at::Tensor parameter_;
  std::unique_ptr<optim::AdamW> optimizer_;
};

TEST_F(EmulatedStep, APlainStepIsTwoLaunchesAndOneThatMeasuresThree) {
  EXPECT_EQ(launches_of_step(), 2);
  optimizer_->set_max_grad_norm(1.0);
  EXPECT_EQ(launches_of_step(), 3);
}

TEST_F(EmulatedStep, ACapturedStepHoldsItsOwnTable) {
  optimizer_->step();
  device_under_test::set_capturing(true);
  EXPECT_EQ(launches_of_step(), 3);  // the table's bytes are one more
  device_under_test::set_capturing(false);
  EXPECT_EQ(launches_of_step(), 2);
  optimizer_->sync_state();
  auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer_->state().at(parameter_.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 3);
}

TEST_F(EmulatedStep, AFirstStepIsRefusedWhileAGraphIsCaptured) {
  device_under_test::set_capturing(true);
  try {
    optimizer_->step();
    FAIL() << "nothing was thrown";
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("Make one step before the capture"), std::string::npos)
        << error.what();
  }
  EXPECT_TRUE(optimizer_->state().empty());
  EXPECT_TRUE(at::equal(parameter_, torch::ones({100})));
}

TEST_F(EmulatedStep, MoreParametersThanBeforeAreTakenUp) {
  optimizer_->step();
  at::Tensor another = torch::ones({20000}).requires_grad_();
  another.mutable_grad() = torch::ones({20000});
  optimizer_->add_param_group(torch::optim::OptimizerParamGroup(std::vector{another}));
  optimizer_->step();
  optimizer_->sync_state();
  // Step 1 of Adam with a gradient of 1 and lr 0.1: 1 * (1 - 0.1 * 0.01) - 0.1 / (1 + 1e-8).
  EXPECT_TRUE(at::allclose(another, torch::full({20000}, 0.899)));
  auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer_->state().at(another.unsafeGetTensorImpl()));
  EXPECT_EQ(state.step(), 1);
}

TEST_F(EmulatedStep, KernelsThatAreNotThereAreAbsentInWords) {
  const kernels::cuda::Kernels absent{.why_absent = "they were left out"};
  multi_tensor::use_cuda_kernels_on_cpu(&absent);
  EXPECT_THROW(optimizer_->step(), c10::Error);
}

}  // namespace
}  // namespace torchamp
