#pragma once
// An allocator for large CPU tensors that keeps what they free for the next ones, in huge pages.
// LibTorch's own gives such memory back to the system, which clears it anew for every step.

#include <cstdint>
#include <string>

#include "torchamp/base/export.h"

namespace torchamp::ops {

/// Lets LibTorch take the memory of CPU tensors of 128 KiB and more from a cache, for the whole
/// process. Does nothing where that is done already, where the environment variable
/// TORCHAMP_ALLOCATOR is "off", or where another library has put its allocator in LibTorch's place.
///
/// What tensors hold and what they compute stays as it is; new memory holds what was there before,
/// as LibTorch's may. Smaller requests, and those that the system refuses, go to LibTorch's
/// allocator, whose errors are its own. LibTorch's profiler sees the same events.
///
/// Units:   blocks have 8 sizes between powers of two, so at most an eighth of one is not used;
///          they begin at a page, those of 2 MiB and more at a huge page.
/// Limits:  with what is cached, the blocks never exceed the most that was in use at once by more
///          than an eighth; else the block that was free for longest goes back to the system.
/// Devices: CPU.
/// Threads: any; a block may be freed by another thread. fork() is safe.
/// Errors:  base::UsageError where TORCHAMP_ALLOCATOR has another value than on and off.
/// Returns: caching_allocator_installed().
TORCHAMP_API bool install_caching_allocator();

/// Takes back install_caching_allocator(), and gives the cache back to the system, unless a
/// CachingAllocatorInstallation lives. Tensors keep their memory, which goes back when they end.
TORCHAMP_API void uninstall_caching_allocator();

/// Whether tensors take their memory from the cache now.
TORCHAMP_API bool caching_allocator_installed();

/// Keeps the allocator installed while it lives.
class TORCHAMP_API CachingAllocatorInstallation {
 public:
  /// Errors: as install_caching_allocator().
  CachingAllocatorInstallation();
  ~CachingAllocatorInstallation();
  CachingAllocatorInstallation(const CachingAllocatorInstallation&) = delete;
  CachingAllocatorInstallation& operator=(const CachingAllocatorInstallation&) = delete;

 private:
  bool is_counted_;
};

/// Bytes of blocks, except requested_bytes; counts since the process began.
struct AllocatorStatistics {
  int64_t live_bytes = 0;       ///< that tensors hold
  int64_t requested_bytes = 0;  ///< what they asked for; the rest of live_bytes is rounding
  int64_t cached_bytes = 0;     ///< free, and kept
  int64_t peak_live_bytes = 0;
  int64_t peak_held_bytes = 0;  ///< live and cached together
  int64_t hits = 0;             ///< requests that the cache had a block for
  int64_t misses = 0;           ///< requests that the system was asked for
  int64_t system_bytes = 0;     ///< taken from the system in all, over and over
};

TORCHAMP_API AllocatorStatistics caching_allocator_statistics();

/// Gives all cached blocks back to the system, and lets the limit start again from what is live.
/// Returns: the bytes.
TORCHAMP_API int64_t empty_cache();

/// What allocates large CPU tensors.
enum class AllocatorState {
  kLibTorch,  ///< LibTorch's own
  kCaching,   ///< TorchAmp's
  kOthers     ///< another library's, which was left alone
};

/// "LibTorch's", "caching", "another library's".
TORCHAMP_API const char* to_string(AllocatorState state);

TORCHAMP_API AllocatorState allocator_state();

/// Whether the system gives huge pages to those who ask: the file
/// /sys/kernel/mm/transparent_hugepage/enabled says always or madvise. Without, only the cache
/// helps.
TORCHAMP_API bool has_huge_pages();

/// What is wrong with the environment variable TORCHAMP_ALLOCATOR, as a sentence, or an empty
/// string.
TORCHAMP_API std::string allocator_environment_error();

}  // namespace torchamp::ops
