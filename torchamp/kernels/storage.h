#pragma once
// How numbers lie in memory: Storage, and Stream, one array of them. Knows nothing of arithmetic.

#include <cstdint>

namespace torchamp::kernels {

/// How one array holds its elements.
enum class Storage : uint8_t {
  kNone,            ///< there is no such array
  kF32,             ///< float32
  kF64,             ///< float64; all arrays of a call are float64 then
  kBf16,            ///< bfloat16, rounded to nearest even at the store
  kF16,             ///< float16, rounded to nearest even at the store
  kBf16Stochastic,  ///< bfloat16, rounded up or down by chance, so that the mean is exact
  kBf16WithRest,    ///< bfloat16, the nearest to a float32 whose rest is `rest` and `ties`
  kF16WithCopy,     ///< float16, the nearest to the float32 in `rest`
  kBlock8Signed,    ///< 8 bits a value (code8.h), a float32 for each block of kBlock8 in `rest`
  kBlock8Unsigned,  ///< the same for values >= 0, with twice the range
};

/// Elements that share one factor in kBlock8...; chunks begin at multiples of it.
inline constexpr int64_t kBlock8 = 256;

// static: at -O0 an inline one would be shared between the files for each instruction set.
static constexpr int64_t bytes_per_element(Storage storage) {
  switch (storage) {
    case Storage::kNone:
      return 0;
    case Storage::kF64:
      return 8;
    case Storage::kF32:
      return 4;
    case Storage::kBlock8Signed:
    case Storage::kBlock8Unsigned:
      return 1;
    default:
      return 2;
  }
}

/// An array of one tensor, from its first element; kernels take a range of it.
struct Stream {
  Storage storage = Storage::kNone;
  void* data = nullptr;
  /// kBf16WithRest: uint16 low halves; kF16WithCopy: float32; kBlock8...: float32 a block.
  void* rest = nullptr;
  /// kBf16WithRest: one bit an element, the first in bit 0 of the first byte; rounded up to 16
  /// bits.
  uint8_t* ties = nullptr;
  /// The stochastic ones: what the random bits depend on beside the element's index.
  uint64_t key = 0;
};

/// A gradient: x * factor * second_factor, each product rounded.
struct GradStream {
  Storage storage = Storage::kNone;  ///< kF32, kF64, kBf16 or kF16
  void* data = nullptr;
  double factor = 1.0;         ///< 1 / loss scale
  double second_factor = 1.0;  ///< of clipping
  bool write_back = false;     ///< whether the product replaces x
};

}  // namespace torchamp::kernels
