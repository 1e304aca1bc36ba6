#pragma once
// What a choice depends on: the arguments of a call without their numbers, as a fingerprint that is
// quick to take and as a text that is pleasant to read. Internal.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/core/SymIntArrayRef.h>
#include <c10/util/OptionalArrayRef.h>

namespace torchamp::ops::detail {

/// 128 bits of all sizes, strides and parameters. Arguments that differ share them by a chance of
/// 2^-64 or so, and would then share a choice.
class CallHash {
 public:
  CallHash(const void* op, at::ScalarType dtype, int threads) {
    mix(reinterpret_cast<uintptr_t>(op),
        (static_cast<uint64_t>(dtype) << 32) | static_cast<uint32_t>(threads));
  }

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return mix(1, 0);
    const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
    mix(2, (sizes.size() << 8) | static_cast<uint64_t>(tensor.scalar_type()));
    for (size_t i = 0; i < sizes.size(); ++i) {
      mix(static_cast<uint64_t>(sizes[i]), static_cast<uint64_t>(strides[i]));
    }
  }
  void add(const std::optional<at::Tensor>& tensor) {
    tensor.has_value() ? add(*tensor) : mix(3, 0);
  }
  void add(const c10::Scalar& scalar) { mix(4, scalar.equal(0) ? 0 : scalar.equal(1) ? 1 : 2); }
  void add(bool value) { mix(5, value); }
  void add(double value) { mix(6, value == 0.0 ? 0 : 1); }
  void add(const std::optional<double>& /*a factor, which costs the same whatever it is*/) {}
  void add(const c10::SymInt& value) {
    mix(7, static_cast<uint64_t>(value.maybe_as_int().value()));
  }
  void add(c10::SymIntArrayRef values) {
    mix(8, values.size());
    for (const c10::SymInt& value : values) add(value);
  }
  void add(const at::OptionalSymIntArrayRef& values) {
    values.has_value() ? add(*values) : mix(9, 0);
  }
  template <size_t n>
  void add(const std::array<bool, n>& values) {
    uint64_t bits = 0;
    for (const bool value : values) bits = bits * 2 + static_cast<uint64_t>(value);
    mix(10, bits);
  }

  uint64_t first() const { return first_; }
  uint64_t second() const { return second_; }

 private:
  static uint64_t folded(uint64_t x, uint64_t y) {
    const auto product = static_cast<unsigned __int128>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  void mix(uint64_t x, uint64_t y) {
    // Digits of the fractional parts of square roots; any odd numbers with mixed bits would do.
    first_ = folded(first_ ^ x ^ 0x6a09e667f3bcc909, y ^ 0xbb67ae8584caa73b) + y;
    second_ =
        folded(second_ + y + 0x3c6ef372fe94f82b, (x << 32 | x >> 32) ^ 0xa54ff53a5f1d36f1) ^ x;
  }

  uint64_t first_ = 0x510e527fade682d1;
  uint64_t second_ = 0x9b05688c2b3e6c1f;
};

/// The same in words: "bfloat16 16x64 64x64@10, 1 thread". Sizes above 64 count by their leading
/// four bits, so that neighbours share a choice.
class CallText {
 public:
  explicit CallText(at::ScalarType dtype) : text_(c10::toString(dtype)) {}

  void add(const at::Tensor& tensor);
  void add(const std::optional<at::Tensor>& tensor) { add(tensor.value_or(at::Tensor())); }
  void add(const c10::Scalar& scalar);
  void add(bool value) { text_ += value ? " true" : " false"; }
  void add(double value) { text_ += value == 0.0 ? " 0" : " x"; }
  void add(const std::optional<double>& /*factor*/) {}
  void add(const c10::SymInt& value);
  void add(c10::SymIntArrayRef values);
  void add(const at::OptionalSymIntArrayRef& values);
  template <size_t n>
  void add(const std::array<bool, n>& values) {
    text_ += ' ';
    for (const bool value : values) text_ += value ? '1' : '0';
  }

  std::string finish(int threads) const {
    return text_ + ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads");
  }

 private:
  std::string text_;
};

}  // namespace torchamp::ops::detail
