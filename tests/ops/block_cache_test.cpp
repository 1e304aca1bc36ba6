// Blocks by size: cut, joined, kept within a limit, given back.

#include "torchamp/ops/block_cache.h"

#include <cstring>
#include <random>
#include <set>

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "torchamp/ops/system_memory.h"

namespace torchamp::ops::detail {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

struct Cache : BlockCache {
  Cache() { set_keeping(true); }
  ~Cache() { release(); }
  void free(void* data) { put(find(data)); }
};

TEST(BlockSizes, AreTheSmallestOfEightAPowerOfTwo) {
  EXPECT_EQ(size_of_index(0), 128 * kKiB);
  EXPECT_EQ(size_of_index(1), 144 * kKiB);
  EXPECT_EQ(size_of_index(8), 256 * kKiB);
  EXPECT_EQ(size_of_index(kNumSizes - 1), kLargestBlock);
  for (int index = 0; index < kNumSizes; ++index) {
    const size_t size = size_of_index(index);
    EXPECT_EQ(size_index(size), index);
    EXPECT_EQ(size % kPage, 0U);
    if (index + 1 == kNumSizes) break;
    EXPECT_EQ(size_index(size + 1), index + 1);
    EXPECT_LE(size_of_index(index + 1), size + size / 8);
  }
}

TEST(BlockCache, GivesTheSameBlockAgainAndCountsExactly) {
  Cache cache;
  void* const first = cache.take(3 * kMiB + 1);  // 3.25 MiB
  AllocatorStatistics now = cache.statistics();
  EXPECT_EQ(now.live_bytes, 13 * 256 * 1024);
  EXPECT_EQ(now.requested_bytes, 3 * 1024 * 1024 + 1);
  EXPECT_EQ(now.misses, 1);
  EXPECT_EQ(now.system_bytes, now.live_bytes);
  cache.free(first);
  now = cache.statistics();
  EXPECT_EQ(now.live_bytes, 0);
  EXPECT_EQ(now.requested_bytes, 0);
  EXPECT_EQ(now.cached_bytes, 13 * 256 * 1024);
  EXPECT_EQ(cache.take(3 * kMiB + 200 * kKiB), first);
  now = cache.statistics();
  EXPECT_EQ(now.hits, 1);
  EXPECT_EQ(now.misses, 1);
  EXPECT_EQ(now.cached_bytes, 0);
  EXPECT_EQ(now.peak_live_bytes, 13 * 256 * 1024);
  EXPECT_EQ(now.peak_held_bytes, 13 * 256 * 1024);
  EXPECT_EQ(now.system_bytes, 13 * 256 * 1024);
  cache.free(first);
  EXPECT_EQ(cache.release(), 13 * 256 * kKiB);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
}

TEST(BlockCache, CutsALargerBlockAndJoinsItAgain) {
  Cache cache;
  char* const whole = static_cast<char*>(cache.take(8 * kMiB));
  cache.free(whole);
  char* const a = static_cast<char*>(cache.take(2 * kMiB));
  char* const b = static_cast<char*>(cache.take(2 * kMiB));
  char* const c = static_cast<char*>(cache.take(4 * kMiB));
  EXPECT_EQ(a, whole);
  EXPECT_EQ(b, whole + 2 * kMiB);
  EXPECT_EQ(c, whole + 4 * kMiB);
  EXPECT_EQ(cache.statistics().misses, 1);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
  cache.free(b);
  cache.free(a);
  cache.free(c);
  EXPECT_EQ(cache.take(8 * kMiB), whole);
  cache.free(whole);
  EXPECT_EQ(cache.statistics().cached_bytes, 8 * 1024 * 1024);
}

TEST(BlockCache, DoesNotLeaveARestThatIsTooSmallToServe) {
  Cache cache;
  void* const whole = cache.take(1100 * kKiB);  // 1152 KiB
  cache.free(whole);
  void* const part = cache.take(1024 * kKiB);  // 128 KiB are left: a block
  EXPECT_EQ(part, whole);
  EXPECT_EQ(cache.statistics().cached_bytes, 128 * 1024);
  cache.free(part);
  void* const most = cache.take(1025 * kKiB);  // the same size as at first
  EXPECT_EQ(most, whole);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
  cache.free(most);
  EXPECT_EQ(cache.statistics().cached_bytes, 1152 * 1024);
}

TEST(BlockCache, HoldsAnEighthMoreThanWasInUseAtMost) {
  Cache cache;
  std::vector<void*> small;
  for (int i = 0; i < 64; ++i) small.push_back(cache.take(kMiB));
  for (size_t i = 0; i < small.size(); i += 2) cache.free(small[i]);  // nothing to join
  EXPECT_EQ(cache.statistics().cached_bytes, 32 * 1024 * 1024);
  void* const large = cache.take(30 * kMiB);
  const AllocatorStatistics now = cache.statistics();
  EXPECT_LE(now.live_bytes + now.cached_bytes, 72 * 1024 * 1024);
  EXPECT_LE(now.peak_held_bytes, 72 * 1024 * 1024);
  EXPECT_GT(now.cached_bytes, 0);
  cache.free(large);
  for (size_t i = 1; i < small.size(); i += 2) cache.free(small[i]);
  EXPECT_LE(cache.statistics().cached_bytes, 72 * 1024 * 1024);
}

// Pages that this process touched for the first time.
int64_t faults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(BlockCache, AReusedBlockFaultsNoPageAndAGivenBackOneDoes) {
  Cache cache;
  const auto use = [&] {
    void* const data = cache.take(20 * kMiB);
    const int64_t before = faults();
    std::memset(data, 1, 20 * kMiB);
    const int64_t after = faults();
    cache.free(data);
    return after - before;
  };
  EXPECT_GE(use(), 10);  // pages of 2 MiB, or 5120 small ones
  EXPECT_LE(use(), 2);
  EXPECT_LE(use(), 2);
  EXPECT_EQ(cache.release(), 20 * kMiB);
  EXPECT_GE(use(), 10);
}

TEST(BlockCache, KeepsNothingWhileItIsOff) {
  Cache cache;
  void* const first = cache.take(5 * kMiB);
  cache.set_keeping(false);
  cache.free(first);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);
  EXPECT_EQ(cache.statistics().live_bytes, 0);
}

TEST(BlockCache, WhatTheSystemRefusesIsNoBlock) {
  Cache cache;
  void* const kept = cache.take(4 * kMiB);
  cache.free(kept);
  EXPECT_EQ(cache.take(kLargestBlock), nullptr);
  EXPECT_EQ(cache.statistics().cached_bytes, 0);  // it was given back before the second try
  EXPECT_EQ(cache.statistics().live_bytes, 0);
  EXPECT_EQ(cache.find(&cache), nullptr);
}

// Blocks of random sizes never overlap, keep what was written, begin at a page, and those of whole
// huge pages that come from the system at a huge page.
TEST(BlockCache, RandomUseNeverOverlaps) {
  Cache cache;
  std::mt19937_64 random(7);
  struct Held {
    unsigned char* data;
    size_t bytes;
    unsigned char mark;
  };
  std::vector<Held> held;
  std::set<std::pair<unsigned char*, unsigned char*>> ranges;
  int64_t requested = 0;
  for (int step = 0; step < 4000; ++step) {
    if (held.size() > 40 || (!held.empty() && random() % 2 == 0)) {
      const size_t i = random() % held.size();
      const Held gone = held[i];
      held.erase(held.begin() + static_cast<int64_t>(i));
      for (const size_t at : {size_t{0}, gone.bytes / 2, gone.bytes - 1}) {
        ASSERT_EQ(gone.data[at], gone.mark);
      }
      ranges.erase({gone.data, gone.data + gone.bytes});
      requested -= static_cast<int64_t>(gone.bytes);
      cache.free(gone.data);
      continue;
    }
    const size_t bytes = kSmallestBlock + random() % (size_t{1} << (17 + random() % 6));
    auto* const data = static_cast<unsigned char*>(cache.take(bytes));
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % kPage, 0U);
    const auto after = ranges.lower_bound({data, nullptr});
    if (after != ranges.end()) {
      ASSERT_LE(data + bytes, after->first);
    }
    if (after != ranges.begin()) {
      ASSERT_LE(std::prev(after)->second, data);
    }
    ranges.insert({data, data + bytes});
    requested += static_cast<int64_t>(bytes);
    const auto mark = static_cast<unsigned char>(random());
    for (const size_t at : {size_t{0}, bytes / 2, bytes - 1}) data[at] = mark;
    held.push_back({data, bytes, mark});
    const AllocatorStatistics now = cache.statistics();
    ASSERT_EQ(now.requested_bytes, requested);
    ASSERT_GE(now.live_bytes, requested);
    ASSERT_LE(now.live_bytes + now.cached_bytes, now.peak_live_bytes + now.peak_live_bytes / 8);
  }
  for (const Held& each : held) cache.free(each.data);
  const AllocatorStatistics now = cache.statistics();
  EXPECT_EQ(now.live_bytes, 0);
  EXPECT_EQ(now.requested_bytes, 0);
  EXPECT_EQ(static_cast<int64_t>(cache.release()), now.cached_bytes);
}

TEST(SystemMemory, LargePiecesBeginAtAHugePage) {
  for (const size_t bytes : {kHugePage, kHugePage + kPage, 9 * kHugePage}) {
    void* const data = map_pages(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % kHugePage, 0U);
    std::memset(data, 1, bytes);
    unmap_pages(data, bytes);
  }
  EXPECT_EQ(map_pages(size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace torchamp::ops::detail
