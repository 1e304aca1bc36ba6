// A lane of one number, in plain C++. Include in an anonymous namespace's file only: table.inl.h
// follows it.

#include <cmath>

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {
namespace {

template <typename T>
struct Lane {
  using Real = T;
  static constexpr int kWidth = 1;
  T x;

  static Lane all(double value) { return {static_cast<T>(value)}; }
  static Lane load(const T* from) { return {*from}; }
  void store(T* to) const { *to = x; }

  static Lane from_bf16(const uint16_t* from) { return {kernels::from_bf16(*from)}; }
  static Lane from_f16(const uint16_t* from) { return {kernels::from_f16(*from)}; }
  void to_bf16(uint16_t* to) const { *to = kernels::to_bf16(x); }
  void to_f16(uint16_t* to) const { *to = kernels::to_f16(x); }
  Lane rounded_bf16() const { return {kernels::from_bf16(kernels::to_bf16(x))}; }
  Lane rounded_f16() const { return {kernels::from_f16(kernels::to_f16(x))}; }
  void to_bf16_by_chance(uint16_t* to, uint64_t key, uint64_t index) const {
    *to = kernels::to_bf16_by_chance(x, random_bits(key, index));
  }
};

template <typename T>
Lane<T> operator+(Lane<T> a, Lane<T> b) {
  return {a.x + b.x};
}
template <typename T>
Lane<T> operator-(Lane<T> a, Lane<T> b) {
  return {a.x - b.x};
}
template <typename T>
Lane<T> operator*(Lane<T> a, Lane<T> b) {
  return {a.x * b.x};
}
template <typename T>
Lane<T> operator/(Lane<T> a, Lane<T> b) {
  return {a.x / b.x};
}
template <typename T>
Lane<T> fma(Lane<T> a, Lane<T> b, Lane<T> c) {
  return {std::fma(a.x, b.x, c.x)};
}
template <typename T>
Lane<T> sqrt(Lane<T> a) {
  return {std::sqrt(a.x)};
}
// KernelTable::estimated_roots; the IEEE root on a CPU without the instruction.
inline Lane<float> estimated_sqrt(Lane<float> a) {
#ifdef __SSE__
  if (a.x >= kEstimatedFrom && a.x <= kEstimatedTo) {
    const float y = _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(a.x)));
    float root = a.x * y, h = y * 0.5F;
    const float r = 0.5F - root * h;
    root = root + root * r;
    h = h + h * r;
    return {root + (a.x - root * root) * h};
  }
#endif
  return sqrt(a);
}
// a > b ? a : b, so b where one of them is NaN.
inline Lane<float> larger(Lane<float> a, Lane<float> b) { return {a.x > b.x ? a.x : b.x}; }
inline Lane<float> smaller(Lane<float> a, Lane<float> b) { return {a.x < b.x ? a.x : b.x}; }
// x < 0 ? a : b
inline Lane<float> if_negative(Lane<float> x, Lane<float> a, Lane<float> b) {
  return {x.x < 0.0F ? a.x : b.x};
}
// a * 2^n for a in [0.5, 2], n a whole number from -150 to 128; rounded once, subnormals too.
inline Lane<float> times_power_of_2(Lane<float> a, Lane<float> n) {
  if (!(n.x >= -150.0F)) return {a.x * n.x};  // n is NaN
  const auto whole = static_cast<int32_t>(n.x);
  const int32_t half = whole >> 1;
  const auto power = [](int32_t e) { return float_of(static_cast<uint32_t>(e + 127) << 23); };
  return {a.x * power(half) * power(whole - half)};
}
// The larger; NaN where one of them is.
template <typename T>
Lane<T> max_or_nan(Lane<T> a, Lane<T> b) {
  return {a.x != a.x ? a.x : b.x != b.x ? b.x : a.x > b.x ? a.x : b.x};
}
// relu: NaN and -0 stay.
inline Lane<float> zero_if_below(Lane<float> a) { return {a.x < 0 ? 0 : a.x}; }
// g, but +0 where y <= 0.
inline Lane<float> zero_unless_above(Lane<float> y, Lane<float> g) { return {y.x <= 0 ? 0 : g.x}; }
// Where x is larger, or NaN: largest <- x, place <- here.
inline void take_larger(Lane<float> x, Lane<float> here, Lane<float>& largest, Lane<float>& place) {
  if (!(x.x > largest.x) && x.x == x.x) return;
  largest = x;
  place = here;
}
// Whole numbers from 0 to 2^24.
inline void store_whole(Lane<float> a, int64_t* to) { *to = static_cast<int64_t>(a.x); }
// A row of one number is its column.
inline void transpose_square(Lane<float> (&/*x*/)[1]) {}
// Takes g where the index is `place`, else 0, and counts what it took.
struct IndexMatches {
  int64_t counts = 0;
  Lane<float> take(const int64_t* indices, int64_t place, Lane<float> g) {
    if (*indices != place) return {0};
    ++counts;
    return g;
  }
  int64_t count() const { return counts; }
};

// Sixteen running sums of squares: element i goes to sum i % 16.
template <typename T>
struct SquareSums {
  double sums[16] = {};
  void add16(const T* x) {
    for (int i = 0; i < 16; ++i) {
      const double value = x[i];
      sums[i] = std::fma(value, value, sums[i]);
    }
  }
  // Of x * factor * second_factor.
  void add16(const T* x, T factor, T second_factor) {
    for (int i = 0; i < 16; ++i) {
      const double value = x[i] * factor * second_factor;
      sums[i] = std::fma(value, value, sums[i]);
    }
  }
  void get(double* to) const {
    for (int i = 0; i < 16; ++i) to[i] = sums[i];
  }
};

}  // namespace
}  // namespace torchamp::kernels
