#include "torchamp/ops/system_memory.h"

#include <cstdint>

#include <sys/mman.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define TORCHAMP_ADDRESS_SANITIZER 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define TORCHAMP_ADDRESS_SANITIZER 1
#endif
#ifdef TORCHAMP_ADDRESS_SANITIZER
#include <sanitizer/asan_interface.h>
#endif

namespace torchamp::ops::detail {
namespace {

void* map(size_t bytes) {
  void* data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, /*offset=*/0);
  return data == MAP_FAILED ? nullptr : data;
}

}  // namespace

void* map_pages(size_t bytes) {
  if (bytes < kHugePage) return map(bytes);
  char* const all = static_cast<char*>(map(bytes + kHugePage));
  if (all == nullptr) return nullptr;
  const size_t before = -reinterpret_cast<uintptr_t>(all) % kHugePage;
  if (before > 0) munmap(all, before);
  if (before < kHugePage) munmap(all + before + bytes, kHugePage - before);
  // Refused by systems without huge pages; the memory is as good.
  madvise(all + before, bytes, MADV_HUGEPAGE);
  return all + before;
}

void unmap_pages(void* data, size_t bytes) {
  allow_use(data, bytes);  // the address will be another's
  munmap(data, bytes);
}

#ifdef TORCHAMP_ADDRESS_SANITIZER
void forbid_use(const void* data, size_t bytes) { ASAN_POISON_MEMORY_REGION(data, bytes); }
void allow_use(const void* data, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(data, bytes); }
#else
void forbid_use(const void* /*data*/, size_t /*bytes*/) {}
void allow_use(const void* /*data*/, size_t /*bytes*/) {}
#endif

}  // namespace torchamp::ops::detail
