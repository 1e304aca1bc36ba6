#pragma once
// Arrays in every storage for tests of kernels: filled, copied, and compared to the last byte.

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/storage.h"

namespace test_arrays {

using torchamp::kernels::Storage;
using torchamp::kernels::Stream;

/// Memory with guard bytes on both sides, beginning `offset` bytes behind an aligned address.
class Bytes {
 public:
  Bytes() = default;
  Bytes(size_t size, size_t offset) : size_(size), begin_(kGuard + offset) {
    memory_.assign(2 * kGuard + offset + size, kFill);
  }
  unsigned char* data() { return memory_.data() + begin_; }
  size_t size() const { return size_; }
  /// Everything, the guards included.
  const std::vector<unsigned char>& all() const { return memory_; }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kFill = 0xA5;
  // Vectors of bytes from the allocator begin at 16 bytes at least.
  std::vector<unsigned char> memory_;
  size_t size_ = 0;
  size_t begin_ = 0;
};

/// One array of `count` elements and what lies beside it.
struct Array {
  Storage storage = Storage::kNone;
  int64_t count = 0;
  uint64_t key = 0;
  Bytes data, rest, ties;

  Array() = default;
  Array(Storage array_storage, int64_t array_count, bool misaligned)
      : storage(array_storage), count(array_count) {
    if (storage == Storage::kNone) return;
    const auto n = static_cast<size_t>(count);
    const auto size = static_cast<size_t>(torchamp::kernels::bytes_per_element(storage));
    const size_t offset = misaligned ? size : 0;
    data = Bytes(n * size, offset);
    if (storage == Storage::kBf16WithRest) {
      rest = Bytes(n * 2, misaligned ? 2 : 0);
      ties = Bytes((n + 15) / 16 * 2, misaligned ? 1 : 0);
    } else if (storage == Storage::kF16WithCopy) {
      rest = Bytes(n * 4, misaligned ? 4 : 0);
    } else if (storage == Storage::kBlock8Signed || storage == Storage::kBlock8Unsigned) {
      rest = Bytes((n + 255) / 256 * 4, 0);
    }
  }

  Stream stream() {
    Stream result;
    result.storage = storage;
    if (storage == Storage::kNone) return result;
    result.data = data.data();
    result.rest = rest.size() > 0 ? rest.data() : nullptr;
    result.ties = ties.size() > 0 ? ties.data() : nullptr;
    result.key = key;
    return result;
  }
};

/// `table` writes values of a normal distribution times `scale` into the array.
template <typename Table>
void fill(Array& array, const Table& table, std::mt19937& random, double scale, bool positive) {
  std::normal_distribution<double> normal(0.0, scale);
  const auto next = [&] {
    const double value = normal(random);
    return positive ? value * value : value;
  };
  if (array.storage == Storage::kNone || array.count == 0) return;
  if (array.ties.size() > 0) memset(array.ties.data(), 0, array.ties.size());
  if (array.storage == Storage::kF64) {
    for (int64_t i = 0; i < array.count; ++i) {
      const double value = next();
      memcpy(array.data.data() + 8 * i, &value, sizeof value);
    }
    return;
  }
  std::vector<float> values(static_cast<size_t>(array.count));
  for (float& value : values) value = static_cast<float>(next());
  table.write(array.stream(), {0, array.count}, values.data());
}

}  // namespace test_arrays
