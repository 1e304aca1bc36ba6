#pragma once
// Arrays of any Storage for kernel tests: guard bytes around each part, at a chosen offset from an
// aligned address, and read back as comparable numbers.

#include <cstdint>
#include <string>
#include <vector>

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {

/// The tables that run on this machine, "scalar" first.
std::vector<const KernelTable*> tables_here();

/// 32 random bits from a generator that no kernel uses (a linear congruence, high half).
class TestRandom {
 public:
  explicit TestRandom(uint64_t seed) : state_(seed * 2 + 1) {}
  uint32_t bits();
  /// Uniform in [0, 1).
  double unit() { return bits() / 4294967296.0; }
  /// A sign, a mantissa, and a magnitude from 2^-10 to 4.
  float number();

 private:
  uint64_t state_;
};

/// `count` of TestRandom::number().
std::vector<float> random_numbers(uint64_t seed, int64_t count);
/// The same without their sign, squared: what a second moment holds.
std::vector<float> random_squares(uint64_t seed, int64_t count);

/// Bytes between two guards, `offset` bytes after an address that is a multiple of 64.
class GuardedBytes {
 public:
  GuardedBytes(int64_t size, int64_t offset);
  uint8_t* data() { return bytes_.data() + begin_; }
  const uint8_t* data() const { return bytes_.data() + begin_; }
  int64_t size() const { return size_; }
  bool guards_hold() const;

 private:
  std::vector<uint8_t> bytes_;
  int64_t begin_;
  int64_t size_;
};

/// An array of `count` elements that begins `offset` elements after an aligned address.
class TestArray {
 public:
  TestArray(Storage storage, int64_t count, int64_t offset = 0, uint64_t key = 0);
  /// Holds `values`, rounded by the scalar table.
  TestArray(Storage storage, const std::vector<float>& values, int64_t offset = 0,
            uint64_t key = 0);

  Stream stream();
  GradStream grad(double factor = 1.0, double second_factor = 1.0, bool write_back = false);
  void set_key(uint64_t key) { key_ = key; }
  /// Puts `value` at `index` (rounded to nearest where the storage rounds by chance).
  void set(int64_t index, double value);

  Storage storage() const { return storage_; }
  int64_t count() const { return count_; }
  /// The values, through the scalar table.
  std::vector<double> values();
  /// Every bit of data, rest and ties; each NaN as one and the same where a table may choose its
  /// sign and payload.
  std::vector<uint64_t> bits();
  bool guards_hold() const;

 private:
  Storage storage_;
  int64_t count_;
  uint64_t key_;
  GuardedBytes data_, rest_, ties_;
};

const char* name_of(Storage storage);

}  // namespace torchamp::kernels
