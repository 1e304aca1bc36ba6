#pragma once
// Floats of 8 bits, one at a time: 3 mantissa bits, relative to a power of two that a block of
// numbers shares. Wider lanes and other devices must give the same bits.

#include <cstdint>

#include "torchamp/kernels/convert.h"

namespace torchamp::kernels {

// Exponents of a code: signed numbers have 4 bits and a sign, 2^-17 to 1.875; numbers >= 0 have 5
// bits, 2^-33 to 1.875, since a second moment spans twice the range of a first one.
inline constexpr int kSignedExponentBits = 4;
inline constexpr int kUnsignedExponentBits = 5;

/// The number that has code `code`; subnormal codes (exponent 0) included.
template <int kExponentBits>
TORCHAMP_KERNEL_FUNCTION float decode8(uint32_t code) {
  constexpr uint32_t kBias = 128 - (1 << kExponentBits);
  constexpr float kUnit = 1.0F / static_cast<float>(1ULL << ((1 << kExponentBits) + 1));
  const float normal = float_of((code << 20) + (kBias << 23));
  return code < 8 ? static_cast<float>(code) * kUnit : normal;
}

/// One of the two codes around r >= 0, by chance and such that the mean is r; above 1.875 the top.
template <int kExponentBits>
TORCHAMP_KERNEL_FUNCTION uint32_t encode8(float r, uint32_t random) {
  constexpr uint32_t kBias = 128 - (1 << kExponentBits);
  constexpr uint32_t kTop = (8U << kExponentBits) - 1;
  constexpr auto kUnits = static_cast<float>(1ULL << ((1 << kExponentBits) + 1));
  constexpr float kSmallestNormal = 8.0F / kUnits;
  const uint32_t normal = ((bits_of(r) + (random & 0xFFFFFU)) >> 20) - (kBias << 3);
  // 20 bits below the point and 3 above fit in a float32, so a number that has a code keeps it.
  const float chance = static_cast<float>(static_cast<int32_t>(random >> 12)) / 1048576.0F;
  const float small = r < kSmallestNormal ? r : kSmallestNormal;
  const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(small * kUnits + chance));
  const uint32_t code = r < kSmallestNormal ? subnormal : normal;
  return code < kTop ? code : kTop;
}

/// The power of two that a block with this largest magnitude shares: `largest` is at most 1.875
/// times it. It moves only when the largest passes a power of two, so numbers that keep their
/// value keep their code. At least 2^-93, so that no code is a subnormal float32; at most 2^126,
/// so that the inverse is none either (numbers above 1.875 * 2^126 become that).
TORCHAMP_KERNEL_FUNCTION float scale8(float largest) {
  const uint32_t scale = (bits_of(largest) + 0xFFFFFU) & 0x7F800000U;
  constexpr uint32_t kLeast = (127U - 93U) << 23;
  constexpr uint32_t kMost = (127U + 126U) << 23;
  return float_of(scale < kLeast ? kLeast : scale > kMost ? kMost : scale);
}

/// 1 / scale of a power of two within scale8()'s bounds, exactly.
TORCHAMP_KERNEL_FUNCTION float inverse_scale8(float scale) {
  return float_of((254U << 23) - bits_of(scale));
}

}  // namespace torchamp::kernels
