#pragma once
// GELU and its derivative over a lane of float32.
// Source: Hendrycks and Gimpel 2016, section 2.

#include "torchamp/kernels/formula/exponential.h"

namespace torchamp::kernels {

inline constexpr double kRootOf2OverPi = 0.7978845608028654;  // sqrt(2 / pi)
inline constexpr double kRootOfHalf = 0.7071067811865476;
inline constexpr double kCubic = 0.044715;

/// x Phi(x); the sign of x decides which tail is subtracted, so both keep their digits.
template <typename L>
struct ErfGelu {
  static L value(L x) { return x * distribution(x, tail(x)); }
  /// Phi(x) + x phi(x). NaN for an infinite x, as LibTorch has it.
  static L derivative(L x) {
    const Erfc<L> parts = tail(x);
    const L density = parts.exponential_part * L::all(0.3989422804014327);  // 1 / sqrt(2 pi)
    return fma(x, density, distribution(x, parts));
  }

 private:
  static Erfc<L> tail(L x) { return erfc_parts(larger(x, L::all(0.0) - x) * L::all(kRootOfHalf)); }
  static L distribution(L x, Erfc<L> parts) {
    const L outside = parts.exponential_part * parts.ratio * L::all(0.5);
    return if_negative(x, outside, L::all(1.0) - outside);
  }
};

/// x / (1 + exp(-2 u)) = x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <typename L>
struct TanhGelu {
  static L value(L x) { return x / (L::all(1.0) + exponential(minus_2u(x))); }
  /// s + x s (1 - s) 2 u' with s = 1 / (1 + exp(-2 u)). NaN for an infinite x, as LibTorch has it.
  static L derivative(L x) {
    // Beyond 13 the second term is 0 in float32, and inside of it nothing overflows.
    const L inside = smaller(L::all(13.0), larger(L::all(-13.0), x));
    const L e = exponential(smaller(L::all(88.0), minus_2u(inside)));
    const L s = L::all(1.0) / (L::all(1.0) + e);
    const L slope =
        fma(inside * inside, L::all(6.0 * kRootOf2OverPi * kCubic), L::all(2.0 * kRootOf2OverPi));
    return fma(x, L::all(0.0), fma(inside * slope, e * s * s, s));
  }

 private:
  static L minus_2u(L x) {
    return x * fma(x * x, L::all(-2.0 * kRootOf2OverPi * kCubic), L::all(-2.0 * kRootOf2OverPi));
  }
};

}  // namespace torchamp::kernels
