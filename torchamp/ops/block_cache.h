#pragma once
// Blocks of memory by size, in use and free: cut from larger ones, joined again, given back to the
// system past a limit. Thread safe; knows no tensors.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "torchamp/ops/caching_allocator.h"

namespace torchamp::ops::detail {

/// Requests below are not for this cache: their memory does not go back to the system each time.
inline constexpr size_t kSmallestBlock = size_t{128} << 10;
inline constexpr size_t kLargestBlock = size_t{1} << 46;

/// 8 sizes from each power of two to the next, from kSmallestBlock on.
inline constexpr int kNumSizes = (46 - 17) * 8 + 1;

/// The index of the smallest size of at least `bytes`, which is from kSmallestBlock to
/// kLargestBlock.
int size_index(size_t bytes);
size_t size_of_index(int index);

class BlockCache {
 public:
  struct Block {
    void* data = nullptr;
    size_t size = 0;
    size_t requested = 0;  // by who holds it
    bool is_live = false;
    uint64_t freed_at = 0;    // counts up with every block that becomes free
    Block* before = nullptr;  // that it was cut from, or that was cut from it
    Block* after = nullptr;
  };

  BlockCache();

  /// A block of at least `bytes`, or nullptr where the system has none even after the cache was
  /// given back.
  void* take(size_t bytes);

  /// The block in use that begins at `data`; nullptr where there is none.
  Block* find(const void* data);

  /// Keeps a block that find() returned, or gives it back while keeping is off.
  void put(Block* block);

  /// Whether put() keeps; at first it does not.
  void set_keeping(bool keeping);

  /// Gives all free blocks back; what is live begins to count as the most that was in use.
  size_t release();

  AllocatorStatistics statistics() const;

  /// For fork(): no other thread is inside between the two.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Piece {
    void* data;
    size_t bytes;
  };
  Block* take_free(size_t size);
  void cut(Block& block, size_t size);
  void join(Block& block, Block& after);
  void list(Block& block);
  void unlist(const Block& block);
  void begin_use(Block& block, size_t requested);
  Block& oldest();
  void drop(const Block& block, std::vector<Piece>& dropped);
  static size_t give_back(const std::vector<Piece>& pieces);
  size_t limit(size_t more) const;

  mutable std::mutex mutex_;
  std::unordered_map<const void*, Block> blocks_;  // nodes stay where they are
  // By the largest of the sizes that they have; the one freed last at the back.
  std::array<std::vector<Block*>, kNumSizes> free_{};
  std::array<uint64_t, kNumSizes / 64 + 1> filled_{};  // which lists are not empty, by bits
  AllocatorStatistics statistics_;
  size_t most_in_use_ = 0;  // since release()
  uint64_t num_frees_ = 0;
  bool is_keeping_ = false;
};

}  // namespace torchamp::ops::detail
