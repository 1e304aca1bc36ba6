#include "torchamp/train/meter.h"

#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <torch/torch.h>

namespace torchamp::train {
namespace {

constexpr int64_t kMiB = 1 << 20;

torch::Tensor floats(int64_t count) { return torch::empty({count}, torch::kFloat); }

TEST(TensorMemoryMeter, CountsExactlyTheBytesOfTensors) {
  TensorMemoryMeter meter;
  EXPECT_EQ(meter.current_bytes(), 0);
  const torch::Tensor a = floats(1000);
  EXPECT_EQ(meter.current_bytes(), 4000);
  {
    const torch::Tensor b = torch::empty({10, 10}, torch::kBFloat16);
    EXPECT_EQ(meter.current_bytes(), 4200);
    const torch::Tensor view = b.t();  // shares b's memory
    EXPECT_EQ(meter.current_bytes(), 4200);
  }
  EXPECT_EQ(meter.current_bytes(), 4000);
  EXPECT_EQ(meter.peak_bytes(), 4200);
}

TEST(TensorMemoryMeter, PeakStartsAgainFromWhatIsHeldNow) {
  TensorMemoryMeter meter;
  const torch::Tensor a = floats(100);
  floats(900);
  EXPECT_EQ(meter.peak_bytes(), 4000);
  meter.reset_peak();
  EXPECT_EQ(meter.peak_bytes(), 400);
  const torch::Tensor b = floats(50);
  EXPECT_EQ(meter.peak_bytes(), 600);
}

TEST(TensorMemoryMeter, IgnoresWhatWasAllocatedBeforeIt) {
  auto before = std::make_unique<torch::Tensor>(floats(1000));
  TensorMemoryMeter meter;
  before.reset();
  EXPECT_EQ(meter.current_bytes(), 0);
  EXPECT_EQ(meter.peak_bytes(), 0);
}

TEST(TensorMemoryMeter, IgnoresOtherThreads) {
  TensorMemoryMeter meter;
  std::thread([] { floats(1000); }).join();
  EXPECT_EQ(meter.peak_bytes(), 0);
}

TEST(TensorMemoryMeter, SeesWhatBackwardAllocates) {
  const torch::Tensor w = torch::ones({256}, torch::requires_grad());
  TensorMemoryMeter meter;
  (w * w).sum().backward();
  EXPECT_EQ(w.grad().numel(), 256);
  EXPECT_EQ(meter.current_bytes(), 256 * 4);  // the gradient is all that is left
}

TEST(TensorMemoryMeter, EndsWithItsLifeAndLetsAnOuterOneGoOn) {
  TensorMemoryMeter outer;
  {
    const TensorMemoryMeter inner;
    const torch::Tensor a = floats(10);
    EXPECT_EQ(inner.current_bytes(), 40);
    EXPECT_EQ(outer.current_bytes(), 0);
  }
  const torch::Tensor b = floats(20);
  EXPECT_EQ(outer.current_bytes(), 80);
}

TEST(ProcessPeak, GrowsByWhatIsTouched) {
  if (!reset_process_peak()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  const int64_t before = process_peak_bytes();
  ASSERT_GT(before, 0);
  { std::vector<char> block(64 * kMiB, 1); }
  EXPECT_GE(process_peak_bytes(), before + 60 * kMiB);
  ASSERT_TRUE(reset_process_peak());
  EXPECT_LT(process_peak_bytes(), before + 32 * kMiB);
}

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

double phase_ms(const StepTimes& times, Phase phase) {
  return times.phase_ms[static_cast<size_t>(phase)];
}

// A sleep lasts at least as long as asked for; on a busy machine any part may last longer, so only
// lower bounds and sums are exact.
TEST(StepTimer, GivesEachPhaseItsTime) {
  StepTimer timer(c10::kCPU);
  timer.start();
  sleep_ms(3);
  timer.enter(Phase::kForward);
  sleep_ms(12);
  timer.enter(Phase::kBackward);
  sleep_ms(6);
  timer.enter(Phase::kOptimizer);
  const StepTimes times = timer.stop();
  EXPECT_GE(phase_ms(times, Phase::kData), 3);
  EXPECT_GE(phase_ms(times, Phase::kForward), 12);
  EXPECT_GE(phase_ms(times, Phase::kBackward), 6);
  EXPECT_GE(phase_ms(times, Phase::kOptimizer), 0);
  EXPECT_NEAR(times.total_ms, std::accumulate(times.phase_ms.begin(), times.phase_ms.end(), 0.0),
              1e-6);
}

TEST(StepTimer, AddsUpThePartsOfAPhaseThatIsEnteredAgain) {
  StepTimer timer(c10::kCPU);
  timer.start();
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    timer.enter(Phase::kForward);
    sleep_ms(4);
    timer.enter(Phase::kBackward);
  }
  EXPECT_GE(phase_ms(timer.stop(), Phase::kForward), 12);
}

TEST(StepTimer, StartsEachStepFromZero) {
  StepTimer timer(c10::kCPU);
  timer.start();
  sleep_ms(200);
  timer.stop();
  timer.start();
  EXPECT_LT(timer.stop().total_ms, 200);
}

TEST(StepTimer, RefusesToStopWhatWasNotStarted) {
  StepTimer timer(c10::kCPU);
  EXPECT_THROW(timer.stop(), c10::Error);
  EXPECT_THROW(timer.enter(Phase::kForward), c10::Error);
}

TEST(DeviceMemoryPeak, IsZeroForACpu) {
  reset_device_memory_peak(c10::kCPU);
  EXPECT_EQ(device_memory_peak(c10::kCPU).peak_allocated_bytes, 0);
  EXPECT_EQ(device_memory_peak(c10::kCPU).peak_reserved_bytes, 0);
}

TEST(StepTimer, TimesAGpuByItsEvents) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device is available here";
  const c10::Device device(c10::kCUDA, 0);
  const torch::Tensor a = torch::ones({4096, 4096}, device);
  torch::mm(a, a);  // creates the library's handle outside of the measurement
  StepTimer timer(device);
  timer.start();
  timer.enter(Phase::kForward);
  for (int i = 0; i < 10; ++i) torch::mm(a, a);
  const StepTimes times = timer.stop();
  // 10 x 137 GFLOP: no GPU does a PFLOP/s in fp32.
  EXPECT_GT(phase_ms(times, Phase::kForward), 1.0);
}

TEST(DeviceMemoryPeak, CountsAGpusTensors) {
  if (!torch::cuda::is_available()) GTEST_SKIP() << "no CUDA device is available here";
  const c10::Device device(c10::kCUDA, 0);
  torch::empty({1}, device);
  reset_device_memory_peak(device);
  const int64_t before = device_memory_peak(device).peak_allocated_bytes;
  torch::empty({16 * kMiB}, torch::device(device).dtype(torch::kFloat));
  EXPECT_GE(device_memory_peak(device).peak_allocated_bytes, before + 64 * kMiB);
}

}  // namespace
}  // namespace torchamp::train
