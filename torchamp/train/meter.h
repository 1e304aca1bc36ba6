#pragma once
// Clocks and memory meters of a training step. They measure; they neither print nor decide.

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "torchamp/base/export.h"

namespace torchamp::train {

/// Waits until `device` has done all its work. Does nothing for a CPU.
TORCHAMP_API void synchronize(c10::Device device);

enum class Phase { kData, kForward, kBackward, kOptimizer };
inline constexpr int kNumPhases = 4;

/// "data", "forward", "backward" or "optimizer".
TORCHAMP_API const char* format_phase(Phase phase);

struct StepTimes {
  double total_ms = 0;
  std::array<double, kNumPhases> phase_ms{};  // indexed by Phase; they add up to total_ms
};

/// Times one step at a time, by phase.
///
///     timer.start();  timer.enter(Phase::kForward);  ...  StepTimes times = timer.stop();
///
/// Work between start() and the first enter() counts as Phase::kData. A phase may be entered
/// several times in a step (gradient accumulation); its parts add up.
/// Devices: CPU by the steady clock. Others by events on the current stream: start() and stop()
///          wait for the device, enter() does not.
/// Errors:  c10::Error when enter() or stop() comes before start().
class TORCHAMP_API StepTimer {
 public:
  explicit StepTimer(c10::Device device) : device_(device) {}

  void start();
  void enter(Phase phase);
  StepTimes stop();

 private:
  using Clock = std::chrono::steady_clock;
  void mark(Phase phase);

  c10::Device device_;
  bool running_ = false;
  std::vector<Phase> phases_;             // of this step, in order
  std::vector<Clock::time_point> times_;  // their beginnings (CPU), then the end
  std::vector<c10::Event> events_;        // the same on a device; kept from step to step
};

/// Counts the bytes that tensors hold, from its construction to its destruction.
///
/// It sees what is allocated by this thread, and by threads that LibTorch carries this thread's
/// state to (backward does); memory that was allocated before it is not counted, nor is its
/// release. Make and destroy it on one thread. A profiler with profile_memory sees nothing
/// meanwhile. Devices: all together; the caching allocator's own figures are in
/// device_memory_peak().
class TORCHAMP_API TensorMemoryMeter {
 public:
  TensorMemoryMeter();
  ~TensorMemoryMeter();
  TensorMemoryMeter(const TensorMemoryMeter&) = delete;
  TensorMemoryMeter& operator=(const TensorMemoryMeter&) = delete;

  int64_t current_bytes() const;
  /// The most since construction or reset_peak().
  int64_t peak_bytes() const;
  void reset_peak();

 private:
  class Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

/// The most memory that this process ever had resident (VmHWM), or since reset_process_peak().
TORCHAMP_API int64_t process_peak_bytes();

/// Lets process_peak_bytes() start again from what is resident now. False where the kernel does not
/// allow it.
TORCHAMP_API bool reset_process_peak();

struct DeviceMemory {
  int64_t peak_allocated_bytes = 0;  // handed out to tensors
  int64_t peak_reserved_bytes = 0;   // taken from the device
};

/// The peaks of the caching allocator of `device` since reset_device_memory_peak(); zeros for a
/// CPU.
TORCHAMP_API DeviceMemory device_memory_peak(c10::Device device);
TORCHAMP_API void reset_device_memory_peak(c10::Device device);

}  // namespace torchamp::train
