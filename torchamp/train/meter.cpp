#include "torchamp/train/meter.h"

#include <atomic>
#include <cstdio>
#include <cstring>

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace torchamp::train {

void synchronize(c10::Device device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(device.type());
  guard.synchronizeDevice(device.has_index() ? device.index() : guard.getDevice().index());
}

const char* format_phase(Phase phase) {
  switch (phase) {
    case Phase::kData:
      return "data";
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown phase");
}

void StepTimer::mark(Phase phase) {
  phases_.push_back(phase);
  if (device_.is_cpu()) {
    times_.push_back(Clock::now());
    return;
  }
  // BACKEND_DEFAULT: the flag of events that keep the time; LibTorch's own default does not.
  if (events_.size() < phases_.size()) {
    events_.emplace_back(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  const c10::Device here = device_.has_index() ? device_ : guard.getDevice();
  events_[phases_.size() - 1].record(guard.getStream(here));
}

void StepTimer::start() {
  synchronize(device_);
  phases_.clear();
  times_.clear();
  running_ = true;
  mark(Phase::kData);
}

void StepTimer::enter(Phase phase) {
  TORCH_CHECK(running_, "[StepTimer] enter() was called before start(); call start() first.");
  mark(phase);
}

StepTimes StepTimer::stop() {
  TORCH_CHECK(running_, "[StepTimer] stop() was called before start(); call start() first.");
  running_ = false;
  mark(Phase::kData);  // the end; its phase is not used
  synchronize(device_);
  StepTimes result;
  for (size_t i = 0; i + 1 < phases_.size(); ++i) {
    const double ms =
        device_.is_cpu()
            ? std::chrono::duration<double, std::milli>(times_[i + 1] - times_[i]).count()
            : events_[i].elapsedTime(events_[i + 1]);
    result.phase_ms[static_cast<size_t>(phases_[i])] += ms;
    result.total_ms += ms;
  }
  return result;
}

class TensorMemoryMeter::Counter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* /*ptr*/, int64_t alloc_size, size_t /*total_allocated*/,
                         size_t /*total_reserved*/, c10::Device /*device*/) override {
    const int64_t now = current.fetch_add(alloc_size) + alloc_size;
    int64_t before = peak.load();
    while (now > before && !peak.compare_exchange_weak(before, now)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<int64_t> current{0};
  std::atomic<int64_t> peak{0};
};

TensorMemoryMeter::TensorMemoryMeter()
    : counter_(std::make_shared<Counter>()), guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

TensorMemoryMeter::~TensorMemoryMeter() = default;

int64_t TensorMemoryMeter::current_bytes() const { return counter_->current.load(); }
int64_t TensorMemoryMeter::peak_bytes() const { return counter_->peak.load(); }
void TensorMemoryMeter::reset_peak() { counter_->peak.store(counter_->current.load()); }

int64_t process_peak_bytes() {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  long long kilobytes = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::sscanf(line, "VmHWM: %lld kB", &kilobytes) == 1) break;
  }
  std::fclose(file);
  return static_cast<int64_t>(kilobytes) * 1024;
}

bool reset_process_peak() {
  std::FILE* file = std::fopen("/proc/self/clear_refs", "w");
  if (file == nullptr) return false;
  const bool written = std::fputs("5\n", file) >= 0;  // 5: reset the peak (proc(5), clear_refs)
  return std::fclose(file) == 0 && written;
}

DeviceMemory device_memory_peak(c10::Device device) {
  if (device.is_cpu()) return {};
  const auto stats = c10::getDeviceAllocator(device.type())
                         ->getDeviceStats(device.has_index() ? device.index() : 0);
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {.peak_allocated_bytes = stats.allocated_bytes[kAll].peak,
          .peak_reserved_bytes = stats.reserved_bytes[kAll].peak};
}

void reset_device_memory_peak(c10::Device device) {
  if (device.is_cpu()) return;
  c10::getDeviceAllocator(device.type())->resetPeakStats(device.has_index() ? device.index() : 0);
}

}  // namespace torchamp::train
