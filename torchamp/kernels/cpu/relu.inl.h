// relu on the bits of the numbers, which the compiler turns into vectors: no conversion, so every
// NaN stays what it is. Include once in a file, after image_lane.inl.h.

#include "torchamp/kernels/cpu/image_lane.inl.h"

namespace torchamp::kernels {
namespace {
namespace image {

// Of a number below 0, the bits less those of -0 are from 1 to those of infinity.
template <typename Bits>
Bits relu_bits(Bits x, Bits minus_zero, Bits infinity) {
  const auto distance = static_cast<Bits>(x - minus_zero - 1);
  return distance < infinity ? Bits{0} : x;
}

// The same from 0 on, and +0.
template <typename Bits>
Bits relu_grad_bits(Bits grad, Bits x, Bits minus_zero, Bits infinity) {
  const auto distance = static_cast<Bits>(x - minus_zero);
  bool is_dropped = distance <= infinity;
  is_dropped |= x == 0;  // without a branch, in vectors
  return is_dropped ? Bits{0} : grad;
}

template <typename Bits>
void relu_range(const void* x, void* y, Range range, Bits minus_zero, Bits infinity) {
  const auto* from = static_cast<const Bits*>(x);
  auto* to = static_cast<Bits*>(y);
  for (int64_t i = range.begin; i < range.end; ++i) {
    to[i] = relu_bits(from[i], minus_zero, infinity);
  }
}

template <typename Bits>
void relu_grad_range(const void* grad, const void* x, void* out, Range range, Bits minus_zero,
                     Bits infinity) {
  const auto* g = static_cast<const Bits*>(grad);
  const auto* from = static_cast<const Bits*>(x);
  auto* to = static_cast<Bits*>(out);
  for (int64_t i = range.begin; i < range.end; ++i) {
    to[i] = relu_grad_bits(g[i], from[i], minus_zero, infinity);
  }
}

constexpr uint16_t infinity_of(Storage storage) {
  return storage == Storage::kBf16 ? 0x7F80 : 0x7C00;
}

void relu(Storage storage, const void* x, void* y, Range range) {
  storage == Storage::kF32
      ? relu_range<uint32_t>(x, y, range, 0x80000000U, 0x7F800000U)
      : relu_range<uint16_t>(x, y, range, uint16_t{0x8000}, infinity_of(storage));
}

void relu_backward(Storage storage, const void* grad, const void* x, void* out, Range range) {
  storage == Storage::kF32
      ? relu_grad_range<uint32_t>(grad, x, out, range, 0x80000000U, 0x7F800000U)
      : relu_grad_range<uint16_t>(grad, x, out, range, uint16_t{0x8000}, infinity_of(storage));
}

}  // namespace image
}  // namespace
}  // namespace torchamp::kernels
