// A lane of one number: what one CUDA thread computes with. Compiled with -fmad=false, so a sum is
// a sum and a product a product, as in every lane.

#include <cmath>

#include "torchamp/kernels/random.h"

namespace torchamp::kernels {
namespace {

template <typename T>
struct Lane {
  using Real = T;
  static constexpr int kWidth = 1;
  T x;
  TORCHAMP_LANE_FUNCTION static Lane all(double value) { return {static_cast<T>(value)}; }
};

template <typename T>
TORCHAMP_LANE_FUNCTION Lane<T> operator+(Lane<T> a, Lane<T> b) {
  return {a.x + b.x};
}
template <typename T>
TORCHAMP_LANE_FUNCTION Lane<T> operator-(Lane<T> a, Lane<T> b) {
  return {a.x - b.x};
}
template <typename T>
TORCHAMP_LANE_FUNCTION Lane<T> operator*(Lane<T> a, Lane<T> b) {
  return {a.x * b.x};
}
template <typename T>
TORCHAMP_LANE_FUNCTION Lane<T> operator/(Lane<T> a, Lane<T> b) {
  return {a.x / b.x};
}
TORCHAMP_LANE_FUNCTION Lane<float> fma(Lane<float> a, Lane<float> b, Lane<float> c) {
  return {::fmaf(a.x, b.x, c.x)};
}
TORCHAMP_LANE_FUNCTION Lane<double> fma(Lane<double> a, Lane<double> b, Lane<double> c) {
  return {::fma(a.x, b.x, c.x)};
}
TORCHAMP_LANE_FUNCTION Lane<float> sqrt(Lane<float> a) { return {::sqrtf(a.x)}; }
TORCHAMP_LANE_FUNCTION Lane<double> sqrt(Lane<double> a) { return {::sqrt(a.x)}; }
// The larger; NaN where one of them is.
template <typename T>
TORCHAMP_LANE_FUNCTION Lane<T> max_or_nan(Lane<T> a, Lane<T> b) {
  return {a.x != a.x ? a.x : b.x != b.x ? b.x : a.x > b.x ? a.x : b.x};
}

}  // namespace
}  // namespace torchamp::kernels
