#pragma once
// The output function of splitmix64, shared by the order of an epoch and by synthetic data.

#include <cstdint>

namespace torchamp::train {

/// A bijection of 64-bit words whose outputs look random, with or without structure in the inputs.
/// Source: Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators" (increment
/// first, then the finalizer with Stafford's constants, variant 13).
inline uint64_t mix64(uint64_t word) {
  word += 0x9E3779B97F4A7C15U;
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9U;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBU;
  return word ^ (word >> 31);
}

}  // namespace torchamp::train
