#pragma once
// 16-bit floats and float32, one number at a time. Wider lanes must give the same bits.

#include <cstdint>
#include <cstring>

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

TORCHAMP_KERNEL_FUNCTION uint32_t bits_of(float x) {
  uint32_t bits = 0;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

TORCHAMP_KERNEL_FUNCTION float float_of(uint32_t bits) {
  float x = 0;
  memcpy(&x, &bits, sizeof x);
  return x;
}

TORCHAMP_KERNEL_FUNCTION bool is_nan_bits(uint32_t bits) {
  return (bits & 0x7FFFFFFFU) > 0x7F800000U;
}

TORCHAMP_KERNEL_FUNCTION float from_bf16(uint16_t x) {
  return float_of(static_cast<uint32_t>(x) << 16);
}

/// To nearest even; every NaN becomes 0x7FC0.
TORCHAMP_KERNEL_FUNCTION uint16_t to_bf16(float x) {
  const uint32_t bits = bits_of(x);
  if (is_nan_bits(bits)) return 0x7FC0;
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

/// Up or down by chance: adds 16 random bits below the cut. Inf and the largest finite stay.
TORCHAMP_KERNEL_FUNCTION uint16_t to_bf16_by_chance(float x, uint32_t random) {
  const uint32_t bits = bits_of(x);
  if (is_nan_bits(bits)) return 0x7FC0;
  const uint32_t rounded = (bits + (random & 0xFFFFU)) >> 16;
  const bool was_finite = (bits & 0x7F800000U) != 0x7F800000U;
  const bool became_inf = (rounded & 0x7F80U) == 0x7F80U;
  return static_cast<uint16_t>(was_finite && became_inf ? bits >> 16 : rounded);
}

TORCHAMP_KERNEL_FUNCTION float from_f16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000U) << 16;
  const uint32_t magnitude = x & 0x7FFFU;
  if (magnitude >= 0x7C00U) {  // inf, NaN
    return float_of(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13) |
                    ((magnitude & 0x3FFU) != 0 ? 0x400000U : 0U));
  }
  if (magnitude >= 0x400U) return float_of(sign | ((magnitude << 13) + (112U << 23)));
  // A subnormal is magnitude * 2^-24, exact in float32.
  return float_of(sign | bits_of(static_cast<float>(magnitude) * 5.9604644775390625e-8F));
}

/// To nearest even; overflow gives inf, subnormals are kept.
TORCHAMP_KERNEL_FUNCTION uint16_t to_f16(float x) {
  const uint32_t bits = bits_of(x);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) {  // NaN: quiet, the top bits of the payload stay
    return static_cast<uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  }
  if (magnitude >= 0x47800000U) return static_cast<uint16_t>(sign | 0x7C00U);  // from 65536
  if (magnitude < 0x38800000U) {                                               // below 2^-14
    // Adding 0.5 puts the unit of 2^-24 at the last place of float32, which rounds there.
    const uint32_t sum = bits_of(float_of(magnitude) + 0.5F);
    return static_cast<uint16_t>(sign | (sum - 0x3F000000U));
  }
  const uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U) - (112U << 23);
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

/// A float32 as the nearest bfloat16, the low half, and one bit. The bit tells apart the two
/// float32 that lie half way on either side of an even bfloat16 and share its low half, 0x8000.
struct SplitFloat {
  uint16_t weight;
  uint16_t low;
  bool is_tie_from_below;  ///< low is 0x8000 and the float32 lies below the weight in magnitude
};

TORCHAMP_KERNEL_FUNCTION SplitFloat split(float x) {
  const uint32_t bits = bits_of(x);
  if (is_nan_bits(bits)) return {0x7FC0, 0, false};
  const uint16_t weight = to_bf16(x);
  const auto low = static_cast<uint16_t>(bits);
  return {weight, low, low == 0x8000U && weight != static_cast<uint16_t>(bits >> 16)};
}

TORCHAMP_KERNEL_FUNCTION float join(SplitFloat parts) {
  const bool was_rounded_up = parts.low > 0x8000U || parts.is_tie_from_below;
  const uint32_t high = static_cast<uint32_t>(parts.weight) - (was_rounded_up ? 1U : 0U);
  return float_of((high << 16) | parts.low);
}

}  // namespace torchamp::kernels
