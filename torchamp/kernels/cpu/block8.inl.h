// Moments in 8 bits: small floats (code8.h) relative to the largest of a block of kBlock8. Values
// are rounded up or down by chance, so that the mean of many steps is exact: an average whose steps
// are smaller than the distance of two codes would otherwise stand still. A value >= 0 that is not
// 0 never becomes 0, because it will be divided by.
// Source: Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", for the blocks.

#include <cstring>

#include "torchamp/kernels/code8.h"
#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {
namespace {

void load_codes8(const uint8_t* codes, bool is_signed, float scale, int n, float* to) {
  if (is_signed) {
    for (int i = 0; i < n; ++i) {
      const float magnitude = decode8<kSignedExponentBits>(codes[i] & 0x7FU) * scale;
      to[i] = (codes[i] & 0x80U) != 0 ? -magnitude : magnitude;
    }
  } else {
    for (int i = 0; i < n; ++i) to[i] = decode8<kUnsignedExponentBits>(codes[i]) * scale;
  }
}

void load_block8(const Stream& stream, int64_t begin, int n, float* to) {
  const auto* codes = static_cast<const uint8_t*>(stream.data) + begin;
  const auto* scales = static_cast<const float*>(stream.rest) + begin / kBlock8;
  for (int first = 0; first < n; first += kBlock8) {
    const int count = n - first < kBlock8 ? n - first : static_cast<int>(kBlock8);
    load_codes8(codes + first, stream.storage == Storage::kBlock8Signed, scales[first / kBlock8],
                count, to + first);
  }
}

// `index` is that of the first element in the tensor.
void store_codes8(const float* from, bool is_signed, uint64_t key, int64_t index, int n,
                  uint8_t* codes, float* stored_scale) {
  uint32_t largest = 0;  // of the magnitudes, as bits: these are in the same order
  for (int i = 0; i < n; ++i) {
    const uint32_t magnitude = bits_of(from[i]) & 0x7FFFFFFFU;
    largest = magnitude > largest ? magnitude : largest;
  }
  if (largest >= 0x7F800000U) {  // inf or NaN; nothing to save: every element becomes NaN
    *stored_scale = float_of(0x7FC00000U);
    memset(codes, 1, static_cast<size_t>(n));
    return;
  }
  const float scale = scale8(float_of(largest));
  const float inverse = inverse_scale8(scale);
  *stored_scale = scale;
  for (int i = 0; i < n; ++i) {
    const uint32_t random = random_bits(key, static_cast<uint64_t>(index + i));
    const uint32_t magnitude = bits_of(from[i]) & 0x7FFFFFFFU;
    const float r = float_of(magnitude) * inverse;
    if (is_signed) {
      const uint32_t sign = (bits_of(from[i]) >> 24) & 0x80U;
      codes[i] = static_cast<uint8_t>(sign | encode8<kSignedExponentBits>(r, random));
    } else {
      const uint32_t code = encode8<kUnsignedExponentBits>(r, random);
      codes[i] = static_cast<uint8_t>(code == 0 && magnitude != 0 ? 1 : code);
    }
  }
}

void store_block8(const float* from, const Stream& stream, int64_t begin, int n) {
  auto* codes = static_cast<uint8_t*>(stream.data) + begin;
  auto* scales = static_cast<float*>(stream.rest) + begin / kBlock8;
  for (int first = 0; first < n; first += kBlock8) {
    const int count = n - first < kBlock8 ? n - first : static_cast<int>(kBlock8);
    store_codes8(from + first, stream.storage == Storage::kBlock8Signed, stream.key, begin + first,
                 count, codes + first, scales + first / kBlock8);
  }
}

}  // namespace
}  // namespace torchamp::kernels
