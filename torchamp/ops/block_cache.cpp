#include "torchamp/ops/block_cache.h"

#include <algorithm>
#include <bit>

#include "torchamp/ops/system_memory.h"

namespace torchamp::ops::detail {
namespace {

constexpr int kSmallestPower = 17;
static_assert(kSmallestBlock == size_t{1} << kSmallestPower);

// The part of the most that was in use, that all blocks may exceed it by: what cutting leaves over.
// Without, a training step finds no block for some requests and the system clears them each time.
constexpr size_t kRoom = 8;

int64_t as_signed(size_t bytes) { return static_cast<int64_t>(bytes); }

// The largest size that a block of `bytes` has.
int list_of(size_t bytes) {
  const int index = size_index(std::min(bytes, kLargestBlock));
  return size_of_index(index) > bytes ? index - 1 : index;
}

}  // namespace

int size_index(size_t bytes) {
  const int power = std::bit_width(bytes) - 1;
  const int step = power - 3;
  const size_t eighths = (bytes + (size_t{1} << step) - 1) >> step;  // 8 to 16
  return (power - kSmallestPower) * 8 + static_cast<int>(eighths) - 8;
}

size_t size_of_index(int index) {
  return static_cast<size_t>(8 + index % 8) << (kSmallestPower - 3 + index / 8);
}

BlockCache::BlockCache() { blocks_.reserve(1024); }

size_t BlockCache::limit(size_t more) const {
  const size_t most = std::max(most_in_use_, static_cast<size_t>(statistics_.live_bytes) + more);
  return most + most / kRoom;
}

void* BlockCache::take(size_t bytes) {
  const size_t size = size_of_index(size_index(bytes));
  std::vector<Piece> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (Block* block = take_free(size)) {
      ++statistics_.hits;
      begin_use(*block, bytes);
      return block->data;
    }
    const size_t most = limit(size);
    while (statistics_.cached_bytes > 0 &&
           static_cast<size_t>(statistics_.live_bytes + statistics_.cached_bytes) + size > most) {
      drop(oldest(), dropped);
    }
  }
  give_back(dropped);  // outside of the lock: the system takes its time
  void* data = map_pages(size);
  if (data == nullptr && release() > 0) data = map_pages(size);
  if (data == nullptr) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  Block& block = blocks_[data];
  block = {.data = data, .size = size};
  ++statistics_.misses;
  statistics_.system_bytes += as_signed(size);
  begin_use(block, bytes);
  return data;
}

// The smallest that is large enough, or a part of it.
BlockCache::Block* BlockCache::take_free(size_t size) {
  const auto first = static_cast<size_t>(size_index(size));
  uint64_t bits = filled_[first / 64] >> (first % 64) << (first % 64);
  size_t word = first / 64;
  while (bits == 0) {
    if (++word == filled_.size()) return nullptr;
    bits = filled_[word];
  }
  Block* block = free_[word * 64 + static_cast<size_t>(std::countr_zero(bits))].back();
  unlist(*block);
  if (block->size - size >= kSmallestBlock) cut(*block, size);
  return block;
}

void BlockCache::cut(Block& block, size_t size) {
  void* const data = static_cast<char*>(block.data) + size;
  Block& rest = blocks_[data];
  rest = {.data = data, .size = block.size - size, .before = &block, .after = block.after};
  if (rest.after != nullptr) rest.after->before = &rest;
  block.after = &rest;
  block.size = size;
  list(rest);
}

// Both are free and in no list.
void BlockCache::join(Block& block, Block& after) {
  block.size += after.size;
  block.after = after.after;
  if (block.after != nullptr) block.after->before = &block;
  blocks_.erase(after.data);
}

void BlockCache::list(Block& block) {
  const auto index = static_cast<size_t>(list_of(block.size));
  block.freed_at = ++num_frees_;
  free_[index].push_back(&block);
  filled_[index / 64] |= uint64_t{1} << (index % 64);
  statistics_.cached_bytes += as_signed(block.size);
}

void BlockCache::unlist(const Block& block) {
  const auto index = static_cast<size_t>(list_of(block.size));
  std::vector<Block*>& blocks = free_[index];
  blocks.erase(std::find(blocks.rbegin(), blocks.rend(), &block).base() - 1);
  if (blocks.empty()) filled_[index / 64] &= ~(uint64_t{1} << (index % 64));
  statistics_.cached_bytes -= as_signed(block.size);
}

void BlockCache::begin_use(Block& block, size_t requested) {
  block.is_live = true;
  block.requested = requested;
  AllocatorStatistics& now = statistics_;
  now.live_bytes += as_signed(block.size);
  now.requested_bytes += as_signed(requested);
  now.peak_live_bytes = std::max(now.peak_live_bytes, now.live_bytes);
  now.peak_held_bytes = std::max(now.peak_held_bytes, now.live_bytes + now.cached_bytes);
  most_in_use_ = std::max(most_in_use_, static_cast<size_t>(now.live_bytes));
  allow_use(block.data, requested);
  forbid_use(static_cast<char*>(block.data) + requested, block.size - requested);
}

BlockCache::Block* BlockCache::find(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = blocks_.find(data);
  return found != blocks_.end() && found->second.is_live ? &found->second : nullptr;
}

void BlockCache::put(Block* block) {
  std::vector<Piece> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    block->is_live = false;
    statistics_.live_bytes -= as_signed(block->size);
    statistics_.requested_bytes -= as_signed(block->requested);
    forbid_use(block->data, block->size);
    if (Block* after = block->after; after != nullptr && !after->is_live) {
      unlist(*after);
      join(*block, *after);
    }
    if (Block* before = block->before; before != nullptr && !before->is_live) {
      unlist(*before);
      join(*before, *block);
      block = before;
    }
    list(*block);
    if (!is_keeping_) drop(*block, dropped);
  }
  give_back(dropped);
}

void BlockCache::set_keeping(bool keeping) {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_keeping_ = keeping;
}

// Each list begins with the block that was free for longest. There is at least one.
BlockCache::Block& BlockCache::oldest() {
  Block* result = nullptr;
  for (const std::vector<Block*>& blocks : free_) {
    if (blocks.empty()) continue;
    if (result == nullptr || blocks.front()->freed_at < result->freed_at) result = blocks.front();
  }
  return *result;
}

void BlockCache::drop(const Block& block, std::vector<Piece>& dropped) {
  unlist(block);
  if (block.before != nullptr) block.before->after = nullptr;
  if (block.after != nullptr) block.after->before = nullptr;
  dropped.push_back({block.data, block.size});
  blocks_.erase(block.data);
}

size_t BlockCache::give_back(const std::vector<Piece>& pieces) {
  size_t bytes = 0;
  for (const Piece& piece : pieces) {
    unmap_pages(piece.data, piece.bytes);
    bytes += piece.bytes;
  }
  return bytes;
}

size_t BlockCache::release() {
  std::vector<Piece> dropped;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (statistics_.cached_bytes > 0) drop(oldest(), dropped);
    most_in_use_ = static_cast<size_t>(statistics_.live_bytes);
  }
  return give_back(dropped);
}

AllocatorStatistics BlockCache::statistics() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return statistics_;
}

}  // namespace torchamp::ops::detail
