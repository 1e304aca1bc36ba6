#include "kernels/arrays.h"

#include <cmath>
#include <cstring>

namespace torchamp::kernels {
namespace {

constexpr int64_t kGuard = 128;
constexpr uint8_t kGuardByte = 0xA5;

int64_t rest_bytes(Storage storage, int64_t count) {
  switch (storage) {
    case Storage::kBf16WithRest:
      return 2 * count;
    case Storage::kF16WithCopy:
      return 4 * count;
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      return (count + kBlock8 - 1) / kBlock8 * 4;
    default:
      return 0;
  }
}

int64_t tie_bytes(Storage storage, int64_t count) {
  return storage == Storage::kBf16WithRest ? (count + 15) / 16 * 2 : 0;
}

template <typename Bits>
void append(const GuardedBytes& bytes, Bits infinity, std::vector<uint64_t>& to) {
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;
  for (int64_t i = 0; i < bytes.size(); i += static_cast<int64_t>(sizeof(Bits))) {
    Bits x = 0;
    std::memcpy(&x, bytes.data() + i, sizeof x);
    const bool is_nan = infinity != 0 && (x & kMagnitude) > infinity;
    to.push_back(is_nan ? infinity + 1 : x);
  }
}

}  // namespace

std::vector<const KernelTable*> tables_here() {
  std::vector<const KernelTable*> found;
  for (const KernelTable* table : cpu_tables()) {
    if (table->runs_here()) found.push_back(table);
  }
  return found;
}

uint32_t TestRandom::bits() {
  state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
  return static_cast<uint32_t>(state_ >> 32);
}

float TestRandom::number() {
  const double magnitude = std::ldexp(1.0 + unit(), static_cast<int>(bits() >> 20) % 12 - 10);
  return static_cast<float>((bits() >> 31) != 0 ? -magnitude : magnitude);
}

std::vector<float> random_numbers(uint64_t seed, int64_t count) {
  TestRandom random(seed);
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& x : numbers) x = random.number();
  return numbers;
}

std::vector<float> random_squares(uint64_t seed, int64_t count) {
  std::vector<float> numbers = random_numbers(seed, count);
  for (float& x : numbers) x *= x;
  return numbers;
}

GuardedBytes::GuardedBytes(int64_t size, int64_t offset)
    : bytes_(static_cast<size_t>(size + offset + 2 * kGuard + 64), kGuardByte), size_(size) {
  const auto address = reinterpret_cast<uintptr_t>(bytes_.data() + kGuard);
  begin_ = kGuard + static_cast<int64_t>((64 - address % 64) % 64) + offset;
  if (size != 0) std::memset(data(), 0, static_cast<size_t>(size));
}

bool GuardedBytes::guards_hold() const {
  for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i) {
    if ((i < begin_ || i >= begin_ + size_) && bytes_[static_cast<size_t>(i)] != kGuardByte) {
      return false;
    }
  }
  return true;
}

TestArray::TestArray(Storage storage, int64_t count, int64_t offset, uint64_t key)
    : storage_(storage),
      count_(count),
      key_(key),
      data_(count * bytes_per_element(storage), offset * bytes_per_element(storage)),
      rest_(rest_bytes(storage, count), offset * 4),
      ties_(tie_bytes(storage, count), offset) {}

TestArray::TestArray(Storage storage, const std::vector<float>& values, int64_t offset,
                     uint64_t key)
    : TestArray(storage, static_cast<int64_t>(values.size()), offset, key) {
  if (storage == Storage::kF64) {
    for (int64_t i = 0; i < count_; ++i) set(i, values[static_cast<size_t>(i)]);
  } else {
    tables_here().front()->write(stream(), {0, count_}, values.data());
  }
}

Stream TestArray::stream() { return {storage_, data_.data(), rest_.data(), ties_.data(), key_}; }

GradStream TestArray::grad(double factor, double second_factor, bool write_back) {
  return {storage_, data_.data(), factor, second_factor, write_back};
}

void TestArray::set(int64_t index, double value) {
  if (storage_ == Storage::kF64) {
    std::memcpy(data_.data() + 8 * index, &value, 8);
    return;
  }
  std::vector<float> all(static_cast<size_t>(count_));
  const KernelTable& scalar = *tables_here().front();
  scalar.read(stream(), {0, count_}, all.data());
  all[static_cast<size_t>(index)] = static_cast<float>(value);
  Stream nearest = stream();
  if (storage_ == Storage::kBf16Stochastic) nearest.storage = Storage::kBf16;
  scalar.write(nearest, {0, count_}, all.data());
}

std::vector<double> TestArray::values() {
  std::vector<double> result(static_cast<size_t>(count_));
  if (storage_ == Storage::kF64) {
    if (count_ != 0) std::memcpy(result.data(), data_.data(), 8 * result.size());
    return result;
  }
  std::vector<float> floats(static_cast<size_t>(count_));
  tables_here().front()->read(stream(), {0, count_}, floats.data());
  for (size_t i = 0; i < floats.size(); ++i) result[i] = floats[i];
  return result;
}

std::vector<uint64_t> TestArray::bits() {
  std::vector<uint64_t> result;
  switch (storage_) {
    case Storage::kF64:
      append<uint64_t>(data_, 0x7FF0000000000000ULL, result);
      break;
    case Storage::kF32:
      append<uint32_t>(data_, 0x7F800000U, result);
      break;
    case Storage::kF16WithCopy:
      append<uint32_t>(rest_, 0x7F800000U, result);
      append<uint16_t>(data_, 0x7C00, result);
      break;
    case Storage::kF16:
      append<uint16_t>(data_, 0x7C00, result);
      break;
    default:  // a bfloat16 NaN has one form, a block of 8 bits too
      append<uint8_t>(data_, 0, result);
      append<uint8_t>(rest_, 0, result);
      append<uint8_t>(ties_, 0, result);
  }
  return result;
}

bool TestArray::guards_hold() const {
  return data_.guards_hold() && rest_.guards_hold() && ties_.guards_hold();
}

const char* name_of(Storage storage) {
  switch (storage) {
    case Storage::kNone:
      return "none";
    case Storage::kF32:
      return "f32";
    case Storage::kF64:
      return "f64";
    case Storage::kBf16:
      return "bf16";
    case Storage::kF16:
      return "f16";
    case Storage::kBf16Stochastic:
      return "bf16 by chance";
    case Storage::kBf16WithRest:
      return "bf16 with rest";
    case Storage::kF16WithCopy:
      return "f16 with copy";
    case Storage::kBlock8Signed:
      return "8 bits";
    case Storage::kBlock8Unsigned:
      return "8 bits unsigned";
  }
  return "?";
}

}  // namespace torchamp::kernels
