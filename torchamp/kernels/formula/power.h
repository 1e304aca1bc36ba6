#pragma once
// beta^t on any machine: no library's pow, whose last bit differs between CPUs and GPUs.

#include <cmath>
#include <cstdint>

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {

/// A number as the sum of two doubles, the second below half a unit in the last place of the first.
struct DoublePair {
  double high;
  double low;
};

/// a * b with about 104 bits (Dekker 1971, with a fused multiply-add for the error of the product).
TORCHAMP_KERNEL_FUNCTION DoublePair multiply_pairs(DoublePair a, DoublePair b) {
  const double product = a.high * b.high;
  const double error = ::fma(a.high, b.high, -product) + ::fma(a.high, b.low, a.low * b.high);
  const double high = product + error;
  return {high, error - (high - product)};
}

/// x^n for n >= 0, by squaring. The last rounding is the only one that counts: n roundings of
/// 2^-104 stay far below half a unit of 2^-53, so the result is the nearest double but for cases
/// that lie half way within them.
TORCHAMP_KERNEL_FUNCTION double integer_power(double x, int64_t n) {
  DoublePair power{1.0, 0.0}, square{x, 0.0};
  for (auto rest = static_cast<uint64_t>(n); rest != 0; rest >>= 1) {
    if ((rest & 1) != 0) power = multiply_pairs(power, square);
    square = multiply_pairs(square, square);
  }
  return power.high + power.low;
}

}  // namespace torchamp::kernels
