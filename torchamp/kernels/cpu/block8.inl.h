// Moments in 8 bits: small floats relative to the largest of a block of kBlock8. Values are rounded
// up or down by chance, so that the mean of many steps is exact: an average whose steps are smaller
// than the distance of two codes would otherwise stand still.
//
// A signed code is a sign and a float of 4 exponent and 3 mantissa bits. Values >= 0 are kept as
// their square root, in 4 and 4 bits, so that a second moment keeps the range of the first; one
// that is not 0 never becomes 0, because it will be divided by.
// Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", for the blocks.

#include <cmath>
#include <cstring>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {
namespace {

// The float with `kMantissa` bits that has code `code`; 1 <= exponent <= 15 are 2^-14 to 2^0.
template <int kMantissa>
float decode8(uint32_t code) {
  constexpr float kUnit = 1.0F / (1U << (14 + kMantissa));  // distance of the subnormal ones
  const float normal = float_of((code << (23 - kMantissa)) + (112U << 23));
  return code < (1U << kMantissa) ? static_cast<float>(code) * kUnit : normal;
}

// One of the two codes around r, 0 <= r <= top, by chance.
template <int kMantissa>
uint32_t encode8(float r, uint32_t random) {
  constexpr uint32_t kTop = (16U << kMantissa) - 1;
  constexpr float kUnits = 1U << (14 + kMantissa);
  const uint32_t below = random & ((1U << (23 - kMantissa)) - 1);
  const uint32_t normal = ((bits_of(r) + below) >> (23 - kMantissa)) - (112U << kMantissa);
  const float chance = static_cast<float>(random >> 8) * 5.9604644775390625e-8F;  // [0, 1)
  const auto subnormal =
      static_cast<uint32_t>(static_cast<int32_t>((r < 1.0F ? r : 1.0F) * kUnits + chance));
  const uint32_t code = r < 6.103515625e-5F ? subnormal : normal;
  return code < kTop ? code : kTop;
}

constexpr float kTopSigned = 1.875F;     // decode8<3>(127)
constexpr float kTopUnsigned = 1.9375F;  // decode8<4>(255)

void load_block8(const Stream& stream, int64_t begin, int n, float* to) {
  const auto* codes = static_cast<const uint8_t*>(stream.data) + begin;
  const auto* scales = static_cast<const float*>(stream.rest) + begin / kBlock8;
  const bool is_signed = stream.storage == Storage::kBlock8Signed;
  for (int first = 0; first < n; first += kBlock8) {
    const float scale = scales[first / kBlock8];
    const int last = n - first < kBlock8 ? n : first + static_cast<int>(kBlock8);
    if (is_signed) {
      for (int i = first; i < last; ++i) {
        const float magnitude = decode8<3>(codes[i] & 0x7FU) * scale;
        to[i] = (codes[i] & 0x80U) != 0 ? -magnitude : magnitude;
      }
    } else {
      for (int i = first; i < last; ++i) {
        const float root = decode8<4>(codes[i]) * scale;
        to[i] = root * root;
      }
    }
  }
}

void store_block8(const float* from, const Stream& stream, int64_t begin, int n) {
  auto* codes = static_cast<uint8_t*>(stream.data) + begin;
  auto* scales = static_cast<float*>(stream.rest) + begin / kBlock8;
  const bool is_signed = stream.storage == Storage::kBlock8Signed;
  for (int first = 0; first < n; first += kBlock8) {
    const int last = n - first < kBlock8 ? n : first + static_cast<int>(kBlock8);
    float largest = 0.0F;
    bool is_nan = false;
    for (int i = first; i < last; ++i) {
      const float magnitude = float_of(bits_of(from[i]) & 0x7FFFFFFFU);
      is_nan |= magnitude != magnitude;
      largest = magnitude > largest ? magnitude : largest;
    }
    if (!is_signed) largest = __builtin_sqrtf(largest);
    const float scale = largest / (is_signed ? kTopSigned : kTopUnsigned);
    float& stored = scales[first / kBlock8];
    if (is_nan || !(largest - largest == 0.0F)) {  // nothing to save: every element becomes NaN
      stored = float_of(0x7FC00000U);
      memset(codes + first, 1, static_cast<size_t>(last - first));
      continue;
    }
    stored = scale;
    // A largest value so small that the division loses it counts as 0.
    const float inverse = scale > 1e-38F ? 1.0F / scale : 0.0F;
    for (int i = first; i < last; ++i) {
      const uint32_t random = random_bits(stream.key, static_cast<uint64_t>(begin + i));
      if (is_signed) {
        const uint32_t sign = (bits_of(from[i]) >> 24) & 0x80U;
        const float r = float_of(bits_of(from[i]) & 0x7FFFFFFFU) * inverse;
        codes[i] = static_cast<uint8_t>(sign | encode8<3>(r, random));
      } else {
        const uint32_t code = encode8<4>(__builtin_sqrtf(from[i]) * inverse, random);
        codes[i] = static_cast<uint8_t>(code == 0 && from[i] > 0.0F ? 1 : code);
      }
    }
  }
}

}  // namespace
}  // namespace torchamp::kernels
