// Lanes of 8 floats or 4 doubles with AVX2, FMA and F16C. Include in a file compiled for them only;
// table.inl.h follows it.

#include <immintrin.h>

#include "torchamp/kernels/convert.h"
#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {
namespace {

template <typename T>
struct Lane;

template <>
struct Lane<float> {
  using Real = float;
  static constexpr int kWidth = 8;
  __m256 x;

  static Lane all(double value) { return {_mm256_set1_ps(static_cast<float>(value))}; }
  static Lane load(const float* from) { return {_mm256_loadu_ps(from)}; }
  void store(float* to) const { _mm256_storeu_ps(to, x); }

  static Lane from_bf16(const uint16_t* from) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(widen(from), 16))};
  }
  static Lane from_f16(const uint16_t* from) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  void to_f16(uint16_t* to) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                     _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void to_bf16(uint16_t* to) const { narrow(nearest_bf16(x), to); }
  Lane rounded_bf16() const {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(nearest_bf16(x), 16))};
  }
  Lane rounded_f16() const {
    return {_mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
  }
  void to_bf16_by_chance(uint16_t* to, uint64_t key, uint64_t index) const {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(bits, _mm256_and_si256(random(key, index), _mm256_set1_epi32(0xFFFF))),
        16);
    const __m256i exponent = _mm256_set1_epi32(0x7F800000);
    const __m256i was_not_finite = _mm256_cmpeq_epi32(_mm256_and_si256(bits, exponent), exponent);
    const __m256i is_inf = _mm256_cmpeq_epi32(_mm256_and_si256(rounded, _mm256_set1_epi32(0x7F80)),
                                              _mm256_set1_epi32(0x7F80));
    __m256i result = _mm256_blendv_epi8(rounded, _mm256_srli_epi32(bits, 16),
                                        _mm256_andnot_si256(was_not_finite, is_inf));
    result = _mm256_blendv_epi8(result, _mm256_set1_epi32(0x7FC0), nan_mask(x));
    narrow(result, to);
  }

  // join() and split() of 16 elements; `ties` are 16 bits.
  static void join16(const uint16_t* weight, const uint16_t* low, const uint8_t* ties, float* to) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m256i low32 = widen(low + 8 * half);
      const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
      const __m256i tie =
          _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(ties[half]), bit), bit);
      const __m256i was_rounded_up =  // all ones, which is -1
          _mm256_or_si256(_mm256_cmpgt_epi32(low32, _mm256_set1_epi32(0x8000)), tie);
      const __m256i high = _mm256_add_epi32(widen(weight + 8 * half), was_rounded_up);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 8 * half),
                          _mm256_or_si256(_mm256_slli_epi32(high, 16), low32));
    }
  }
  static void split16(const float* from, uint16_t* weight, uint16_t* low, uint8_t* ties) {
    for (int64_t half = 0; half < 2; ++half) {
      const __m256 x = _mm256_loadu_ps(from + 8 * half);
      const __m256i bits = _mm256_castps_si256(x);
      const __m256i nearest = nearest_bf16(x);
      const __m256i low32 =
          _mm256_andnot_si256(nan_mask(x), _mm256_and_si256(bits, _mm256_set1_epi32(0xFFFF)));
      const __m256i was_kept = _mm256_cmpeq_epi32(nearest, _mm256_srli_epi32(bits, 16));
      const __m256i tie =
          _mm256_andnot_si256(was_kept, _mm256_cmpeq_epi32(low32, _mm256_set1_epi32(0x8000)));
      narrow(nearest, weight + 8 * half);
      narrow(low32, low + 8 * half);
      ties[half] = static_cast<uint8_t>(_mm256_movemask_ps(_mm256_castsi256_ps(tie)));
    }
  }

 private:
  static __m256i widen(const uint16_t* from) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void narrow(__m256i value, uint16_t* to) {  // each below 2^16
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(value, value), 0x08);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(packed));
  }
  static __m256i nan_mask(__m256 x) {
    return _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
  static __m256i nearest_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7FC0), nan_mask(x));
  }
  // random_bits() of 8 elements in a row; `index` is a multiple of 8.
  static __m256i random(uint64_t key, uint64_t index) {
    __m256i r = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int>(index)),
                                 _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    r = _mm256_xor_si256(r, _mm256_set1_epi32(static_cast<int>(key)));
    r = _mm256_xor_si256(
        r, _mm256_set1_epi32(static_cast<int>(static_cast<uint32_t>(index >> 32) * 0x9E3779B9U)));
    r = _mm256_mullo_epi32(_mm256_xor_si256(r, _mm256_srli_epi32(r, 16)),
                           _mm256_set1_epi32(0x7FEB352D));
    r = _mm256_xor_si256(r, _mm256_set1_epi32(static_cast<int>(key >> 32)));
    r = _mm256_mullo_epi32(_mm256_xor_si256(r, _mm256_srli_epi32(r, 15)),
                           _mm256_set1_epi32(static_cast<int>(0x846CA68BU)));
    return _mm256_xor_si256(r, _mm256_srli_epi32(r, 16));
  }
};

template <>
struct Lane<double> {
  using Real = double;
  static constexpr int kWidth = 4;
  __m256d x;

  static Lane all(double value) { return {_mm256_set1_pd(value)}; }
  static Lane load(const double* from) { return {_mm256_loadu_pd(from)}; }
  void store(double* to) const { _mm256_storeu_pd(to, x); }
};

inline Lane<float> operator+(Lane<float> a, Lane<float> b) { return {_mm256_add_ps(a.x, b.x)}; }
inline Lane<float> operator-(Lane<float> a, Lane<float> b) { return {_mm256_sub_ps(a.x, b.x)}; }
inline Lane<float> operator*(Lane<float> a, Lane<float> b) { return {_mm256_mul_ps(a.x, b.x)}; }
inline Lane<float> operator/(Lane<float> a, Lane<float> b) { return {_mm256_div_ps(a.x, b.x)}; }
inline Lane<float> fma(Lane<float> a, Lane<float> b, Lane<float> c) {
  return {_mm256_fmadd_ps(a.x, b.x, c.x)};
}
inline Lane<float> sqrt(Lane<float> a) { return {_mm256_sqrt_ps(a.x)}; }
// KernelTable::estimated_roots
inline Lane<float> estimated_sqrt(Lane<float> a) {
  const __m256 y = _mm256_rsqrt_ps(a.x), half = _mm256_set1_ps(0.5F);
  __m256 root = _mm256_mul_ps(a.x, y), h = _mm256_mul_ps(y, half);
  const __m256 r = _mm256_sub_ps(half, _mm256_mul_ps(root, h));
  root = _mm256_add_ps(root, _mm256_mul_ps(root, r));
  h = _mm256_add_ps(h, _mm256_mul_ps(h, r));
  const __m256 rest = _mm256_sub_ps(a.x, _mm256_mul_ps(root, root));
  root = _mm256_add_ps(root, _mm256_mul_ps(rest, h));
  // Zero, subnormal, next to overflow, inf and NaN: the IEEE root.
  const __m256 usual = _mm256_and_ps(_mm256_cmp_ps(a.x, _mm256_set1_ps(kEstimatedFrom), _CMP_GE_OQ),
                                     _mm256_cmp_ps(a.x, _mm256_set1_ps(kEstimatedTo), _CMP_LE_OQ));
  if (_mm256_movemask_ps(usual) != 0xFF) {
    root = _mm256_blendv_ps(_mm256_sqrt_ps(a.x), root, usual);
  }
  return {root};
}
// a > b ? a : b, so b where one of them is NaN.
inline Lane<float> larger(Lane<float> a, Lane<float> b) { return {_mm256_max_ps(a.x, b.x)}; }
inline Lane<float> smaller(Lane<float> a, Lane<float> b) { return {_mm256_min_ps(a.x, b.x)}; }
// x < 0 ? a : b
inline Lane<float> if_negative(Lane<float> x, Lane<float> a, Lane<float> b) {
  return {_mm256_blendv_ps(b.x, a.x, _mm256_cmp_ps(x.x, _mm256_setzero_ps(), _CMP_LT_OQ))};
}
// a * 2^n for a in [0.5, 2], n a whole number from -150 to 128; rounded once, subnormals too.
inline Lane<float> times_power_of_2(Lane<float> a, Lane<float> n) {
  const __m256i whole = _mm256_cvtps_epi32(n.x);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const auto power = [&](__m256i e) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(e, bias), 23));
  };
  return {_mm256_mul_ps(_mm256_mul_ps(a.x, power(half)), power(_mm256_sub_epi32(whole, half)))};
}
inline Lane<float> max_or_nan(Lane<float> a, Lane<float> b) {
  // max gives b where one is NaN, so a NaN in a is put back.
  const __m256 a_is_nan = _mm256_cmp_ps(a.x, a.x, _CMP_UNORD_Q);
  return {_mm256_blendv_ps(_mm256_max_ps(a.x, b.x), a.x, a_is_nan)};
}
// relu: NaN and -0 stay.
inline Lane<float> zero_if_below(Lane<float> a) {
  return {_mm256_max_ps(_mm256_setzero_ps(), a.x)};  // the second, where neither is larger
}
// g, but +0 where y <= 0.
inline Lane<float> zero_unless_above(Lane<float> y, Lane<float> g) {
  return {_mm256_and_ps(_mm256_cmp_ps(y.x, _mm256_setzero_ps(), _CMP_NLE_UQ), g.x)};
}
// Where x is larger, or NaN: largest <- x, place <- here.
inline void take_larger(Lane<float> x, Lane<float> here, Lane<float>& largest, Lane<float>& place) {
  const __m256 taken = _mm256_or_ps(_mm256_cmp_ps(x.x, largest.x, _CMP_GT_OQ),
                                    _mm256_cmp_ps(x.x, x.x, _CMP_UNORD_Q));
  largest.x = _mm256_blendv_ps(largest.x, x.x, taken);
  place.x = _mm256_blendv_ps(place.x, here.x, taken);
}
// Whole numbers from 0 to 2^24.
inline void store_whole(Lane<float> a, int64_t* to) {
  const __m256i whole = _mm256_cvttps_epi32(a.x);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_cvtepu32_epi64(_mm256_castsi256_si128(whole)));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 4),
                      _mm256_cvtepu32_epi64(_mm256_extracti128_si256(whole, 1)));
}
// Eight rows of eight numbers become columns.
inline void transpose_square(Lane<float> (&x)[8]) {
  __m256 pairs[8];  // 128 bits hold two numbers of two rows
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i].x, x[i + 1].x);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i].x, x[i + 1].x);
  }
  __m256 fours[8];  // half l of fours[4 * i + j]: column 4 * l + j of rows 4 * i to 4 * i + 3
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xEE);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xEE);
  }
  for (int j = 0; j < 4; ++j) {
    x[j].x = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x20);
    x[4 + j].x = _mm256_permute2f128_ps(fours[j], fours[4 + j], 0x31);
  }
}
// Takes g where the index is `place`, else 0, and counts what it took.
struct IndexMatches {
  __m256i counts = _mm256_setzero_si256();
  Lane<float> take(const int64_t* indices, int64_t place, Lane<float> g) {
    const __m256i wanted = _mm256_set1_epi64x(place);
    const auto equal_to = [wanted](const int64_t* from) {
      return _mm256_castsi256_ps(
          _mm256_cmpeq_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), wanted));
    };
    // Even halves of 64 bits: 0 1 4 5 | 2 3 6 7, then in order.
    const __m256 mixed = _mm256_shuffle_ps(equal_to(indices), equal_to(indices + 4), 0x88);
    const __m256d ordered = _mm256_permute4x64_pd(_mm256_castps_pd(mixed), _MM_SHUFFLE(3, 1, 2, 0));
    const __m256 equal = _mm256_castpd_ps(ordered);
    counts = _mm256_sub_epi32(counts, _mm256_castps_si256(equal));
    return {_mm256_and_ps(equal, g.x)};
  }
  int64_t count() const {
    int32_t of_lanes[8];
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(of_lanes), counts);
    int64_t sum = 0;
    for (const int32_t each : of_lanes) sum += each;
    return sum;
  }
};

inline Lane<double> operator+(Lane<double> a, Lane<double> b) { return {_mm256_add_pd(a.x, b.x)}; }
inline Lane<double> operator-(Lane<double> a, Lane<double> b) { return {_mm256_sub_pd(a.x, b.x)}; }
inline Lane<double> operator*(Lane<double> a, Lane<double> b) { return {_mm256_mul_pd(a.x, b.x)}; }
inline Lane<double> operator/(Lane<double> a, Lane<double> b) { return {_mm256_div_pd(a.x, b.x)}; }
inline Lane<double> fma(Lane<double> a, Lane<double> b, Lane<double> c) {
  return {_mm256_fmadd_pd(a.x, b.x, c.x)};
}
inline Lane<double> sqrt(Lane<double> a) { return {_mm256_sqrt_pd(a.x)}; }
inline Lane<double> max_or_nan(Lane<double> a, Lane<double> b) {
  const __m256d a_is_nan = _mm256_cmp_pd(a.x, a.x, _CMP_UNORD_Q);
  return {_mm256_blendv_pd(_mm256_max_pd(a.x, b.x), a.x, a_is_nan)};
}

inline __m256d four_doubles(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
inline __m256d four_doubles(const double* x) { return _mm256_loadu_pd(x); }
inline __m256d four_doubles(const float* x, float f, float s) {
  const __m128 once = _mm_mul_ps(_mm_loadu_ps(x), _mm_set1_ps(f));
  return _mm256_cvtps_pd(_mm_mul_ps(once, _mm_set1_ps(s)));
}
inline __m256d four_doubles(const double* x, double f, double s) {
  const __m256d once = _mm256_mul_pd(_mm256_loadu_pd(x), _mm256_set1_pd(f));
  return _mm256_mul_pd(once, _mm256_set1_pd(s));
}

// Sixteen running sums of squares: element i goes to sum i % 16.
template <typename T>
struct SquareSums {
  __m256d sums[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(),
                     _mm256_setzero_pd()};
  void add16(const T* x) {
    for (int64_t i = 0; i < 4; ++i) {
      const __m256d four = four_doubles(x + 4 * i);
      sums[i] = _mm256_fmadd_pd(four, four, sums[i]);
    }
  }
  // Of x * factor * second_factor.
  void add16(const T* x, T factor, T second_factor) {
    for (int64_t i = 0; i < 4; ++i) {
      const __m256d four = four_doubles(x + 4 * i, factor, second_factor);
      sums[i] = _mm256_fmadd_pd(four, four, sums[i]);
    }
  }
  void get(double* to) const {
    for (int64_t i = 0; i < 4; ++i) _mm256_storeu_pd(to + 4 * i, sums[i]);
  }
};

}  // namespace
}  // namespace torchamp::kernels
