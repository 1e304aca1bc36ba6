#include "cli/memory.h"

#include <cstdio>

namespace torchamp::cli {

nlohmann::ordered_json allocator_json() {
  if (!ops::caching_allocator_installed()) return nullptr;
  const ops::AllocatorStatistics now = ops::caching_allocator_statistics();
  return {{"live_bytes", now.live_bytes},
          {"requested_bytes", now.requested_bytes},
          {"cached_bytes", now.cached_bytes},
          {"peak_live_bytes", now.peak_live_bytes},
          {"peak_held_bytes", now.peak_held_bytes},
          {"hits", now.hits},
          {"misses", now.misses},
          {"system_bytes", now.system_bytes}};
}

std::string describe(const ops::AllocatorStatistics& statistics) {
  const auto mib = [](int64_t bytes) {
    return static_cast<long long>((bytes + (int64_t{1} << 19)) >> 20);
  };
  const int64_t requests = statistics.hits + statistics.misses;
  if (requests == 0) return "Large tensors: none were needed.";
  char text[160];
  std::snprintf(text, sizeof(text),
                "Large tensors: at most %lld MiB in use and %lld MiB held, %.1f%% of %lld requests "
                "from the cache.",
                mib(statistics.peak_live_bytes), mib(statistics.peak_held_bytes),
                100.0 * static_cast<double>(statistics.hits) / static_cast<double>(requests),
                static_cast<long long>(requests));
  return text;
}

std::string describe_allocator() {
  switch (ops::allocator_state()) {
    case ops::AllocatorState::kCaching:
      return std::string("kept for the next ones, in ") +
             (ops::has_huge_pages() ? "huge pages" : "small pages (the system has no huge ones)") +
             " (TORCHAMP_ALLOCATOR=off leaves them to LibTorch)";
    case ops::AllocatorState::kOthers:
      return "another library's allocator";
    case ops::AllocatorState::kLibTorch:
      break;
  }
  return "LibTorch's allocator (TORCHAMP_ALLOCATOR is off)";
}

}  // namespace torchamp::cli
