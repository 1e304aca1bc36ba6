// What only a GPU shows: that nothing waits for the device, that a whole step with a skip runs from
// a CUDA graph, what memory a step takes, and indices above 2^31.

#include <limits>
#include <memory>

#include <gtest/gtest.h>

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include "cuda/device_under_test.h"
#include "torchamp/optim/master_weights.h"
#include "torchamp/torchamp.h"

namespace torchamp {
namespace {

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = device_under_test::why_skipped(); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

at::TensorOptions on_gpu() { return at::device(device_under_test::device()).dtype(at::kFloat); }

// While it lives, an operation of LibTorch that waits for the device throws.
struct NoSync {
  NoSync() { c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR); }
  ~NoSync() {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
  }
};

// weight * input, summed: the gradient is the input.
struct Training {
  explicit Training(bool fused_clip, int64_t growth_interval = 3)
      : scaler({.init_scale = 1024, .growth_interval = growth_interval}) {
    weight = torch::linspace(-1, 1, 5000, on_gpu()).requires_grad_();
    input = torch::ones({5000}, on_gpu());
    optimizer = std::make_unique<optim::AdamW>(std::vector{weight}, optim::AdamWOptions(0.1));
    if (fused_clip) optimizer->set_max_grad_norm(1.0);
    clips_before = !fused_clip;
  }
  void step() {
    at::Tensor loss = (weight * input).sum();
    scaler.scale(loss).backward();
    if (clips_before) {
      scaler.unscale_(*optimizer);
      clip_grad_norm_({weight}, 1.0);
    }
    scaler.step(*optimizer);
    scaler.update();
  }

  amp::GradScaler scaler;
  at::Tensor weight, input;
  std::unique_ptr<optim::AdamW> optimizer;
  bool clips_before = false;
};

TEST_F(Gpu, TheGuardOfTheseTestsSeesAWait) {
  const at::Tensor one = torch::ones({}, on_gpu());
  const NoSync guard;
  EXPECT_ANY_THROW(one.item<float>());
}

TEST_F(Gpu, NothingWaitsInScaleUnscaleStepAndUpdate) {
  for (const bool fused_clip : {true, false}) {
    Training training(fused_clip, /*growth_interval=*/1000);
    training.step();                 // makes states
    for (int i = 0; i < 300; ++i) {  // more than a scaler keeps of outcomes that nobody reads
      if (i == 2) training.input.fill_(std::numeric_limits<float>::infinity());
      if (i == 3) training.input.fill_(0.5);
      training.optimizer->zero_grad();
      const NoSync guard;
      training.step();
    }
    training.optimizer->sync_state();
    auto& state = static_cast<torch::optim::AdamWParamState&>(
        *training.optimizer->state().at(training.weight.unsafeGetTensorImpl()));
    EXPECT_EQ(state.step(), 300);  // 301, one of them skipped
    EXPECT_EQ(training.scaler.applied_steps(), 300);
    EXPECT_EQ(training.scaler.skipped_steps(), 1);
  }
}

TEST_F(Gpu, AWholeStepWithASkipRunsFromAGraph) {
  const float kInputs[] = {1.0F, 0.25F, std::numeric_limits<float>::infinity(), 0.5F, 0.125F};
  for (const bool fused_clip : {true, false}) {
    Training eager(fused_clip), captured(fused_clip);
    const auto stream = c10::cuda::getStreamFromPool();
    at::cuda::CUDAGraph graph;
    {
      const c10::cuda::CUDAStreamGuard guard(stream);
      for (int i = 0; i < 3; ++i) {
        captured.optimizer->zero_grad();
        captured.step();
      }
      captured.optimizer->zero_grad();
      stream.synchronize();
      graph.capture_begin();
      captured.step();
      graph.capture_end();
    }
    stream.synchronize();
    for (int i = 0; i < 3; ++i) {
      eager.optimizer->zero_grad();
      eager.step();
    }
    for (const float value : kInputs) {
      captured.input.fill_(value);
      graph.replay();
      eager.input.fill_(value);
      eager.optimizer->zero_grad();
      eager.step();
      torch::cuda::synchronize();
      EXPECT_TRUE(at::equal(eager.weight, captured.weight)) << "input " << value;
      EXPECT_EQ(eager.scaler.get_scale(), captured.scaler.get_scale()) << "input " << value;
    }
    for (Training* each : {&eager, &captured}) {  // what replays left behind is taken up
      each->optimizer->zero_grad();
      each->step();
    }
    EXPECT_TRUE(at::equal(eager.weight, captured.weight));
    EXPECT_EQ(eager.scaler.get_scale(), captured.scaler.get_scale());
    eager.optimizer->sync_state();
    captured.optimizer->sync_state();
    const auto steps_of = [](Training& training) {
      return static_cast<torch::optim::AdamWParamState&>(
                 *training.optimizer->state().at(training.weight.unsafeGetTensorImpl()))
          .step();
    };
    EXPECT_EQ(steps_of(eager), 8);  // nine, one of them skipped
    EXPECT_EQ(steps_of(captured), 8);
  }
}

TEST_F(Gpu, AStepTakesNoMemoryOfTheGradientsSize) {
  const c10::DeviceIndex index = device_under_test::device().index();
  const auto current = [&](bool peak) {
    const auto bytes = c10::cuda::CUDACachingAllocator::getDeviceStats(index).allocated_bytes[0];
    return peak ? bytes.peak : bytes.current;
  };
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 8; ++i) {
    weights.push_back(torch::ones({1 << 20}, on_gpu()).requires_grad_());
  }
  optim::AdamW optimizer(weights, optim::AdamWOptions(0.1));
  optimizer.set_max_grad_norm(1.0);
  amp::GradScaler scaler({.init_scale = 1024});
  scaler.scale(torch::zeros({}, on_gpu()));
  for (const at::Tensor& weight : weights) weight.mutable_grad() = torch::ones_like(weight);
  const auto step = [&] {
    scaler.step(optimizer);
    scaler.update();
  };
  step();
  torch::cuda::synchronize();
  const int64_t before = current(false);
  c10::cuda::CUDACachingAllocator::resetPeakStats(index);
  for (int i = 0; i < 20; ++i) step();
  torch::cuda::synchronize();
  EXPECT_LT(current(true) - before, 1 << 20);  // 32 MiB of gradients
  EXPECT_LT(current(false) - before, 1 << 20);
}

TEST_F(Gpu, IndicesAbove31BitsAreTaken) {
  size_t free = 0, total = 0;
  c10::cuda::CUDACachingAllocator::emptyCache();
  if (cudaMemGetInfo(&free, &total) != cudaSuccess || free < (size_t{12} << 30)) {
    GTEST_SKIP() << "12 GiB of free device memory are needed";
  }
  const int64_t count = (int64_t{1} << 31) + 300;
  at::Tensor weight = torch::ones({count}, on_gpu().dtype(at::kBFloat16)).requires_grad_();
  weight.mutable_grad() = torch::ones({count}, on_gpu().dtype(at::kBFloat16));
  optim::FusedOptions fused;
  fused.low_precision_weights = optim::LowPrecisionWeights::kPlain;
  optim::SGD optimizer({weight}, optim::SGDOptions(0.5), fused);
  optimizer.step();
  const at::Tensor values = weight.detach();
  EXPECT_TRUE(at::equal(values.slice(0, 0, 300), torch::full_like(values.slice(0, 0, 300), 0.5)));
  EXPECT_TRUE(at::equal(values.slice(0, count - 300), values.slice(0, 0, 300)));
  EXPECT_EQ((values == 0.5).sum().item<int64_t>(), count);
}

TEST_F(Gpu, AMasterGoesToAnotherDeviceWithItsParameter) {
  // None of them is a 16-bit float; 0x1.03p+0 lies half way between two bfloat16.
  const at::Tensor values = torch::tensor({1.0F + 0x1p-20F, 0x1.03p+0F, -3.14159274F, 0x1.05p+0F});
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    at::Tensor parameter = torch::zeros({4}, dtype).requires_grad_();
    const auto master = optim::detail::master_of(parameter);
    master->set(parameter, values);
    const auto holds = [&](const at::Tensor& expected) {
      return at::equal(master->to_float(parameter).cpu(), expected);
    };
    parameter.set_data(parameter.detach().to(device_under_test::device()));
    EXPECT_TRUE(holds(values));
    master->sync(parameter);
    EXPECT_TRUE(holds(values));
    master->set(parameter, values * 3);  // by operators of the GPU
    EXPECT_TRUE(holds(values * 3));
    parameter.set_data(parameter.detach().cpu());
    EXPECT_TRUE(holds(values * 3));
  }
}

TEST_F(Gpu, AnotherStreamThanTheDefaultOneIsTaken) {
  Training one(true), other(true);
  one.step();
  const auto stream = c10::cuda::getStreamFromPool();
  torch::cuda::synchronize();
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    other.step();
  }
  torch::cuda::synchronize();
  EXPECT_TRUE(at::equal(one.weight, other.weight));
}

}  // namespace
}  // namespace torchamp
