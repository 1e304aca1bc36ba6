#include "torchamp/ops/caching_allocator.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <pthread.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <c10/util/Flags.h>

#include "torchamp/base/error.h"
#include "torchamp/base/state_dict.h"
#include "torchamp/ops/block_cache.h"
#include "torchamp/ops/system_memory.h"

C10_DECLARE_bool(caffe2_cpu_allocator_do_zero_fill);
C10_DECLARE_bool(caffe2_cpu_allocator_do_junk_fill);
C10_DECLARE_bool(caffe2_cpu_numa_enabled);

namespace torchamp::ops {
namespace {

// Once installed it stays in LibTorch's table for good, and passes everything on while it is off:
// oneDNN's tensors are freed through the allocator that stands there then, whichever gave them.
class CachingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (is_on_.load(std::memory_order_relaxed) && bytes >= detail::kSmallestBlock &&
        bytes <= detail::kLargestBlock && !is_special()) {
      if (void* data = cache_.take(bytes)) {
        c10::profiledCPUMemoryReporter().New(data, bytes);
        return {data, data, &free, c10::Device(c10::kCPU)};
      }
    }
    c10::DataPtr data = before_->allocate(bytes);  // and its error, where there is no memory
    if (data.get_deleter() == free_before_) {
      // raw_deleter() promises one deleter for all.
      (void)data.compare_exchange_deleter(free_before_, &free);
    }
    return data;
  }

  c10::DeleterFnPtr raw_deleter() const override { return &free; }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  /// Takes the place of LibTorch's own allocator; false where another's stands there.
  bool put_in_place() {
    c10::Allocator* const standing = c10::GetCPUAllocator();
    if (standing == this) return true;
    if (standing != c10::GetDefaultCPUAllocator()) return false;
    before_ = standing;
    free_before_ = standing->raw_deleter();
    c10::SetCPUAllocator(this);
    return is_in_place();  // a higher priority than 0 would have kept it out
  }

  bool is_in_place() const { return c10::GetCPUAllocator() == this; }

  void set_on(bool on) {
    cache_.set_keeping(on);
    is_on_.store(on, std::memory_order_relaxed);
    if (!on) cache_.release();
  }
  bool is_on() const { return is_on_.load(std::memory_order_relaxed); }

  detail::BlockCache& cache() { return cache_; }

 private:
  // LibTorch's flags that ask its allocator for more than memory.
  static bool is_special() {
    return FLAGS_caffe2_cpu_allocator_do_zero_fill || FLAGS_caffe2_cpu_allocator_do_junk_fill ||
           FLAGS_caffe2_cpu_numa_enabled;
  }

  static void free(void* data);

  std::atomic<bool> is_on_ = false;
  c10::Allocator* before_ = nullptr;
  c10::DeleterFnPtr free_before_ = nullptr;
  detail::BlockCache cache_;
};

// Never destroyed: tensors of static lifetime are freed after it would have been.
CachingAllocator& allocator() {
  static CachingAllocator& instance = *new CachingAllocator;
  return instance;
}

void CachingAllocator::free(void* data) {
  CachingAllocator& self = allocator();
  // Few others begin at a page, so most small ones need no search.
  if (reinterpret_cast<uintptr_t>(data) % detail::kPage == 0 && data != nullptr) {
    if (detail::BlockCache::Block* block = self.cache_.find(data)) {
      c10::profiledCPUMemoryReporter().Delete(data);
      self.cache_.put(block);
      return;
    }
  }
  self.free_before_(data);
}

std::string environment() {
  const char* value = std::getenv("TORCHAMP_ALLOCATOR");
  return value == nullptr ? std::string() : value;
}

struct Switch {
  std::mutex mutex;
  bool is_wanted = false;     // install_caching_allocator() was called, and not taken back
  int num_installations = 0;  // objects that live

  Switch() {
    pthread_atfork([] { allocator().cache().lock(); }, [] { allocator().cache().unlock(); },
                   [] { allocator().cache().unlock(); });
  }

  void settle() const {
    CachingAllocator& ours = allocator();
    const bool should_be = is_wanted || num_installations > 0;
    if (should_be && ours.put_in_place() && !ours.is_on()) ours.set_on(true);
    if (!should_be && ours.is_on()) ours.set_on(false);
  }
};

Switch& the_switch() {
  static Switch& instance = *new Switch;
  return instance;
}

bool is_off() {
  const std::string error = allocator_environment_error();
  if (!error.empty()) throw base::UsageError(error);
  return environment() == "off";
}

}  // namespace

std::string allocator_environment_error() {
  const std::string value = environment();
  if (value.empty() || value == "on" || value == "off") return {};
  return "[TORCHAMP_ALLOCATOR] The environment variable TORCHAMP_ALLOCATOR is '" +
         base::printable(value) + "'; on, off or no value is accepted.";
}

bool install_caching_allocator() {
  const bool off = is_off();
  Switch& all = the_switch();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.is_wanted = all.is_wanted || !off;
  all.settle();
  return caching_allocator_installed();
}

void uninstall_caching_allocator() {
  Switch& all = the_switch();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.is_wanted = false;
  all.settle();
}

bool caching_allocator_installed() { return allocator().is_on() && allocator().is_in_place(); }

CachingAllocatorInstallation::CachingAllocatorInstallation() : is_counted_(!is_off()) {
  if (!is_counted_) return;
  Switch& all = the_switch();
  const std::lock_guard<std::mutex> lock(all.mutex);
  ++all.num_installations;
  all.settle();
}

CachingAllocatorInstallation::~CachingAllocatorInstallation() {
  if (!is_counted_) return;
  Switch& all = the_switch();
  const std::lock_guard<std::mutex> lock(all.mutex);
  --all.num_installations;
  all.settle();
}

AllocatorStatistics caching_allocator_statistics() { return allocator().cache().statistics(); }

int64_t empty_cache() { return static_cast<int64_t>(allocator().cache().release()); }

const char* to_string(AllocatorState state) {
  switch (state) {
    case AllocatorState::kLibTorch:
      return "LibTorch's";
    case AllocatorState::kCaching:
      return "caching";
    case AllocatorState::kOthers:
      return "another library's";
  }
  TORCH_INTERNAL_ASSERT(false, "unknown state");
}

AllocatorState allocator_state() {
  if (allocator().is_in_place()) {
    return allocator().is_on() ? AllocatorState::kCaching : AllocatorState::kLibTorch;
  }
  return c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator() ? AllocatorState::kLibTorch
                                                                 : AllocatorState::kOthers;
}

bool has_huge_pages() {
  std::FILE* file = std::fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
  if (file == nullptr) return false;
  char line[128] = {};
  const bool is_read = std::fgets(line, sizeof(line), file) != nullptr;
  std::fclose(file);
  return is_read && std::strstr(line, "[never]") == nullptr;
}

}  // namespace torchamp::ops
