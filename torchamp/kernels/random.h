#pragma once
// Random bits by counting: the same for an element whatever thread or lane asks for them.

#include <cstdint>

// static: a file compiled for one ISA must leave no code that the linker could give to another.
#if defined(__CUDACC__)
#define TORCHAMP_KERNEL_FUNCTION static __host__ __device__ inline
#else
#define TORCHAMP_KERNEL_FUNCTION static inline
#endif

// For templates over a lane, which lives in an anonymous namespace and so keeps them local.
#if defined(__CUDACC__)
#define TORCHAMP_LANE_FUNCTION __host__ __device__ inline
#else
#define TORCHAMP_LANE_FUNCTION inline
#endif

namespace torchamp::kernels {

/// 64 well-mixed bits of a counter (Steele, Lea and Flood 2014, SplitMix64's finalizer).
TORCHAMP_KERNEL_FUNCTION uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

/// The key of one array in one step.
TORCHAMP_KERNEL_FUNCTION uint64_t stream_key(uint64_t seed, uint64_t step, uint64_t stream) {
  return mix64(mix64(mix64(seed) ^ step) ^ stream);
}

/// 32 random bits for element `index` of an array with this key. Two rounds of multiply and
/// xor-shift over the low half of the index, keyed before and between: cheap in every lane.
TORCHAMP_KERNEL_FUNCTION uint32_t random_bits(uint64_t key, uint64_t index) {
  uint32_t x = static_cast<uint32_t>(index) ^ static_cast<uint32_t>(key);
  x ^= static_cast<uint32_t>(index >> 32) * 0x9E3779B9U;
  x = (x ^ (x >> 16)) * 0x7FEB352DU;
  x ^= static_cast<uint32_t>(key >> 32);
  x = (x ^ (x >> 15)) * 0x846CA68BU;
  return x ^ (x >> 16);
}

}  // namespace torchamp::kernels
