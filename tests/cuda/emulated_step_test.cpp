// What a fused step on a GPU does around its kernels, where the host says that a graph is captured.

#include <gtest/gtest.h>

#include <torch/torch.h>

#include "cuda/device_under_test.h"
#include "cuda/emulated/step_kernels.h"
#include "torchamp/multi_tensor/cuda_step.h"
#include "torchamp/optim/master_weights.h"
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
  EXPECT_EQ(launches_of_step(), 3);  // the first table is a launch, too
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

TEST_F(EmulatedStep, AStateLoadedSinceTheLastStepIsRefusedWhileAGraphIsCaptured) {
  optimizer_->step();
  auto& state = static_cast<torch::optim::AdamWParamState&>(
      *optimizer_->state().at(parameter_.unsafeGetTensorImpl()));
  state.step(7);
  const at::Tensor before = parameter_.detach().clone();
  device_under_test::set_capturing(true);
  EXPECT_THROW(optimizer_->step(), c10::Error);
  EXPECT_TRUE(at::equal(before, parameter_));
  device_under_test::set_capturing(false);
  optimizer_->step();
  optimizer_->sync_state();
  EXPECT_EQ(state.step(), 8);
  device_under_test::set_capturing(true);
  optimizer_->step();
}

TEST_F(EmulatedStep, AMasterThatAStepWouldMakeIsRefusedWhileAGraphIsCaptured) {
  at::Tensor weight = torch::full({20}, 0.5, at::kBFloat16).requires_grad_();
  weight.mutable_grad() = torch::ones_like(weight);
  optim::AdamW optimizer({weight}, optim::AdamWOptions(1e-4));
  const auto refusal = [&]() -> std::string {
    device_under_test::set_capturing(true);
    std::string words;
    try {
      optimizer.step();
    } catch (const c10::Error& error) {
      words = error.what();
    }
    device_under_test::set_capturing(false);
    return words;
  };
  EXPECT_NE(refusal().find("has made no step yet"), std::string::npos);
  EXPECT_EQ(optim::detail::find_master(weight), nullptr);
  optimizer.step();
  EXPECT_EQ(refusal(), "");
  {
    const torch::NoGradGuard no_grad;
    weight.add_(0.25);
  }
  const auto master = optim::detail::find_master(weight);
  EXPECT_NE(refusal().find("was written since its last step"), std::string::npos);
  EXPECT_FALSE(master->is_of(weight));  // nothing was dropped or made
}

TEST_F(EmulatedStep, StepsOfACaptureAreNotCountedByTheScaler) {
  amp::GradScaler scaler({.init_scale = 1024});
  const auto iterate = [&] {
    scaler.scale(torch::zeros({}));
    scaler.step(*optimizer_);
    scaler.update();
  };
  iterate();
  device_under_test::set_capturing(true);
  iterate();
  device_under_test::set_capturing(false);
  EXPECT_EQ(scaler.applied_steps(), 1);
  EXPECT_EQ(scaler.health().iterations, 1);
}

TEST_F(EmulatedStep, AFailedLaunchIsAnErrorInWordsAndLeavesNoneBehind) {
  optimizer_->step();
  for (int64_t launch = 1; launch <= 2; ++launch) {
    emulated::num_launches = 0;
    emulated::failing_launch = launch;
    try {
      optimizer_->step();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("on the GPU failed: invalid argument"),
                std::string::npos)
          << error.what();
    }
    emulated::failing_launch = -1;
    EXPECT_FALSE(emulated::has_error());  // LibTorch's next launch would find it
  }
}

// unscale_() and a clip note factors of a 16-bit gradient; update() without a step; the next
// backward pass adds to it. What it holds then is scaled, and no clip of before belongs to it.
TEST_F(EmulatedStep, AClipOfAnIterationLeftWithoutAStepIsForgottenAsOnTheCpu) {
  at::Tensor results[2];
  for (const bool cuda : {false, true}) {
    device_under_test::take_kernels(cuda);
    at::Tensor weight = torch::ones({20}, at::kBFloat16).requires_grad_();
    optim::SGD optimizer({weight}, optim::SGDOptions(0.125));
    amp::GradScaler scaler({.init_scale = 4});
    scaler.scale(weight.sum()).backward();
    scaler.unscale_(optimizer);
    clip_grad_norm_({weight}, 0.5);
    scaler.update();
    scaler.scale(weight.sum()).backward();
    scaler.step(optimizer);
    results[cuda ? 1 : 0] = weight.detach().clone();
  }
  // Two gradients of 1, scaled by 4 and added: 1 - 0.125 * 2.
  EXPECT_TRUE(at::equal(results[0], torch::full({20}, 0.75, at::kBFloat16))) << results[0][0];
  EXPECT_TRUE(at::equal(results[0], results[1])) << results[1][0];
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
