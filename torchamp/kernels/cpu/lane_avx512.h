// Lanes of 16 floats or 8 doubles with AVX-512 (F, BW, DQ, VL). Include in a file compiled for it
// only; table.inl.h follows it.

#include <immintrin.h>

#include "torchamp/kernels/cpu/table.h"

namespace torchamp::kernels {
namespace {

template <typename T>
struct Lane;

template <>
struct Lane<float> {
  using Real = float;
  static constexpr int kWidth = 16;
  __m512 x;

  static Lane all(double value) { return {_mm512_set1_ps(static_cast<float>(value))}; }
  static Lane load(const float* from) { return {_mm512_loadu_ps(from)}; }
  void store(float* to) const { _mm512_storeu_ps(to, x); }

  static Lane from_bf16(const uint16_t* from) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(from)), 16))};
  }
  static Lane from_f16(const uint16_t* from) { return {_mm512_cvtph_ps(load16(from))}; }
  void to_f16(uint16_t* to) const {
    store16(to, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  void to_bf16(uint16_t* to) const { store16(to, _mm512_cvtepi32_epi16(nearest_bf16(x))); }
  Lane rounded_bf16() const {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(nearest_bf16(x), 16))};
  }
  Lane rounded_f16() const {
    return {_mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))};
  }
  void to_bf16_by_chance(uint16_t* to, uint64_t key, uint64_t index) const {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(bits, _mm512_and_si512(random(key, index), _mm512_set1_epi32(0xFFFF))),
        16);
    const __m512i exponent = _mm512_set1_epi32(0x7F800000);
    const __mmask16 was_finite =
        _mm512_cmpneq_epi32_mask(_mm512_and_si512(bits, exponent), exponent);
    const __mmask16 became_inf = _mm512_cmpeq_epi32_mask(
        _mm512_and_si512(rounded, _mm512_set1_epi32(0x7F80)), _mm512_set1_epi32(0x7F80));
    const __m512i kept = _mm512_mask_srli_epi32(rounded, was_finite & became_inf, bits, 16);
    store16(to, _mm512_cvtepi32_epi16(_mm512_mask_set1_epi32(kept, is_nan(x), 0x7FC0)));
  }

  // join() of 16 elements; `ties` are 16 bits.
  static void join16(const uint16_t* weight, const uint16_t* low, const uint8_t* ties, float* to) {
    const __m512i low32 = _mm512_cvtepu16_epi32(load16(low));
    uint16_t tie_bits = 0;
    __builtin_memcpy(&tie_bits, ties, 2);
    const __mmask16 was_rounded_up = _mm512_cmpgt_epi32_mask(low32, _mm512_set1_epi32(0x8000)) |
                                     static_cast<__mmask16>(tie_bits);
    const __m512i weight32 = _mm512_cvtepu16_epi32(load16(weight));
    const __m512i high =
        _mm512_mask_sub_epi32(weight32, was_rounded_up, weight32, _mm512_set1_epi32(1));
    _mm512_storeu_ps(to, _mm512_castsi512_ps(_mm512_or_si512(_mm512_slli_epi32(high, 16), low32)));
  }
  static void split16(const float* from, uint16_t* weight, uint16_t* low, uint8_t* ties) {
    const __m512 x = _mm512_loadu_ps(from);
    const __m512i bits = _mm512_castps_si512(x);
    const __mmask16 nan = is_nan(x);
    const __m512i nearest = nearest_bf16(x);
    const __m512i low32 =
        _mm512_maskz_and_epi32(static_cast<__mmask16>(~nan), bits, _mm512_set1_epi32(0xFFFF));
    const __mmask16 tie = _mm512_cmpeq_epi32_mask(low32, _mm512_set1_epi32(0x8000)) &
                          _mm512_cmpneq_epi32_mask(nearest, _mm512_srli_epi32(bits, 16));
    store16(weight, _mm512_cvtepi32_epi16(nearest));
    store16(low, _mm512_cvtepi32_epi16(low32));
    const auto tie_bits = static_cast<uint16_t>(tie);
    __builtin_memcpy(ties, &tie_bits, 2);
  }

 private:
  static __m256i load16(const uint16_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static void store16(uint16_t* to, __m256i value) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static __mmask16 is_nan(__m512 x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }
  static __m512i nearest_bf16(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    return _mm512_mask_set1_epi32(rounded, is_nan(x), 0x7FC0);
  }
  // random_bits() of 16 elements in a row; `index` is a multiple of 16.
  static __m512i random(uint64_t key, uint64_t index) {
    const __m512i step = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    __m512i r = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(index)), step);
    r = _mm512_xor_si512(r, _mm512_set1_epi32(static_cast<int>(key)));
    r = _mm512_xor_si512(
        r, _mm512_set1_epi32(static_cast<int>(static_cast<uint32_t>(index >> 32) * 0x9E3779B9U)));
    r = _mm512_mullo_epi32(_mm512_xor_si512(r, _mm512_srli_epi32(r, 16)),
                           _mm512_set1_epi32(0x7FEB352D));
    r = _mm512_xor_si512(r, _mm512_set1_epi32(static_cast<int>(key >> 32)));
    r = _mm512_mullo_epi32(_mm512_xor_si512(r, _mm512_srli_epi32(r, 15)),
                           _mm512_set1_epi32(static_cast<int>(0x846CA68BU)));
    return _mm512_xor_si512(r, _mm512_srli_epi32(r, 16));
  }
};

template <>
struct Lane<double> {
  using Real = double;
  static constexpr int kWidth = 8;
  __m512d x;

  static Lane all(double value) { return {_mm512_set1_pd(value)}; }
  static Lane load(const double* from) { return {_mm512_loadu_pd(from)}; }
  void store(double* to) const { _mm512_storeu_pd(to, x); }
};

inline Lane<float> operator+(Lane<float> a, Lane<float> b) { return {_mm512_add_ps(a.x, b.x)}; }
inline Lane<float> operator-(Lane<float> a, Lane<float> b) { return {_mm512_sub_ps(a.x, b.x)}; }
inline Lane<float> operator*(Lane<float> a, Lane<float> b) { return {_mm512_mul_ps(a.x, b.x)}; }
inline Lane<float> operator/(Lane<float> a, Lane<float> b) { return {_mm512_div_ps(a.x, b.x)}; }
inline Lane<float> fma(Lane<float> a, Lane<float> b, Lane<float> c) {
  return {_mm512_fmadd_ps(a.x, b.x, c.x)};
}
inline Lane<float> sqrt(Lane<float> a) { return {_mm512_sqrt_ps(a.x)}; }
// KernelTable::estimated_roots
inline Lane<float> estimated_sqrt(Lane<float> a) {
  const __m256 low = _mm256_rsqrt_ps(_mm512_castps512_ps256(a.x));
  const __m256 high = _mm256_rsqrt_ps(_mm512_extractf32x8_ps(a.x, 1));
  const __m512 y = _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
  const __m512 half = _mm512_set1_ps(0.5F);
  __m512 root = _mm512_mul_ps(a.x, y), h = _mm512_mul_ps(y, half);
  const __m512 r = _mm512_sub_ps(half, _mm512_mul_ps(root, h));
  root = _mm512_add_ps(root, _mm512_mul_ps(root, r));
  h = _mm512_add_ps(h, _mm512_mul_ps(h, r));
  const __m512 rest = _mm512_sub_ps(a.x, _mm512_mul_ps(root, root));
  root = _mm512_add_ps(root, _mm512_mul_ps(rest, h));
  // Zero, subnormal, next to overflow, inf and NaN: the IEEE root.
  const __mmask16 usual = _mm512_cmp_ps_mask(a.x, _mm512_set1_ps(kEstimatedFrom), _CMP_GE_OQ) &
                          _mm512_cmp_ps_mask(a.x, _mm512_set1_ps(kEstimatedTo), _CMP_LE_OQ);
  if (usual != 0xFFFF) root = _mm512_mask_sqrt_ps(root, static_cast<__mmask16>(~usual), a.x);
  return {root};
}
// a > b ? a : b, so b where one of them is NaN.
inline Lane<float> larger(Lane<float> a, Lane<float> b) { return {_mm512_max_ps(a.x, b.x)}; }
inline Lane<float> smaller(Lane<float> a, Lane<float> b) { return {_mm512_min_ps(a.x, b.x)}; }
// x < 0 ? a : b
inline Lane<float> if_negative(Lane<float> x, Lane<float> a, Lane<float> b) {
  return {_mm512_mask_mov_ps(b.x, _mm512_cmp_ps_mask(x.x, _mm512_setzero_ps(), _CMP_LT_OQ), a.x)};
}
// a * 2^n for a in [0.5, 2], n a whole number from -150 to 128; rounded once, subnormals too.
inline Lane<float> times_power_of_2(Lane<float> a, Lane<float> n) {
  return {_mm512_scalef_ps(a.x, n.x)};
}
inline Lane<float> max_or_nan(Lane<float> a, Lane<float> b) {
  // max gives b where one is NaN, so a NaN in a is put back.
  const __mmask16 a_is_nan = _mm512_cmp_ps_mask(a.x, a.x, _CMP_UNORD_Q);
  return {_mm512_mask_mov_ps(_mm512_max_ps(a.x, b.x), a_is_nan, a.x)};
}
// relu: NaN and -0 stay.
inline Lane<float> zero_if_below(Lane<float> a) {
  return {_mm512_max_ps(_mm512_setzero_ps(), a.x)};  // the second, where neither is larger
}
// g, but +0 where y <= 0.
inline Lane<float> zero_unless_above(Lane<float> y, Lane<float> g) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(y.x, _mm512_setzero_ps(), _CMP_NLE_UQ), g.x)};
}
// Where x is larger, or NaN: largest <- x, place <- here.
inline void take_larger(Lane<float> x, Lane<float> here, Lane<float>& largest, Lane<float>& place) {
  const __mmask16 taken =
      _mm512_cmp_ps_mask(x.x, largest.x, _CMP_GT_OQ) | _mm512_cmp_ps_mask(x.x, x.x, _CMP_UNORD_Q);
  largest.x = _mm512_mask_mov_ps(largest.x, taken, x.x);
  place.x = _mm512_mask_mov_ps(place.x, taken, here.x);
}
// Whole numbers from 0 to 2^24.
inline void store_whole(Lane<float> a, int64_t* to) {
  const __m512i whole = _mm512_cvttps_epi32(a.x);
  _mm512_storeu_si512(to, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(whole)));
  _mm512_storeu_si512(to + 8, _mm512_cvtepu32_epi64(_mm512_extracti32x8_epi32(whole, 1)));
}
// Sixteen rows of sixteen numbers become columns.
inline void transpose_square(Lane<float> (&x)[16]) {
  __m512 pairs[16];  // 128 bits hold two numbers of two rows
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i].x, x[i + 1].x);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i].x, x[i + 1].x);
  }
  __m512 fours[16];  // part l of fours[4 * i + j]: column 4 * l + j of rows 4 * i to 4 * i + 3
  const auto low = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high = [](__m512 a, __m512 b) {
    return _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  for (int i = 0; i < 16; i += 4) {
    fours[i] = low(pairs[i], pairs[i + 2]);
    fours[i + 1] = high(pairs[i], pairs[i + 2]);
    fours[i + 2] = low(pairs[i + 1], pairs[i + 3]);
    fours[i + 3] = high(pairs[i + 1], pairs[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 even_above = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0x88);
    const __m512 odd_above = _mm512_shuffle_f32x4(fours[j], fours[4 + j], 0xDD);
    const __m512 even_below = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0x88);
    const __m512 odd_below = _mm512_shuffle_f32x4(fours[8 + j], fours[12 + j], 0xDD);
    x[j].x = _mm512_shuffle_f32x4(even_above, even_below, 0x88);
    x[4 + j].x = _mm512_shuffle_f32x4(odd_above, odd_below, 0x88);
    x[8 + j].x = _mm512_shuffle_f32x4(even_above, even_below, 0xDD);
    x[12 + j].x = _mm512_shuffle_f32x4(odd_above, odd_below, 0xDD);
  }
}
// Takes g where the index is `place`, else 0, and counts what it took.
struct IndexMatches {
  __m512i counts = _mm512_setzero_si512();
  Lane<float> take(const int64_t* indices, int64_t place, Lane<float> g) {
    const __m512i wanted = _mm512_set1_epi64(place);
    const __mmask8 low = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(indices), wanted);
    const __mmask8 high = _mm512_cmpeq_epi64_mask(_mm512_loadu_si512(indices + 8), wanted);
    const __mmask16 equal = _mm512_kunpackb(high, low);
    counts = _mm512_mask_add_epi32(counts, equal, counts, _mm512_set1_epi32(1));
    return {_mm512_maskz_mov_ps(equal, g.x)};
  }
  int64_t count() const { return _mm512_reduce_add_epi32(counts); }
};

inline Lane<double> operator+(Lane<double> a, Lane<double> b) { return {_mm512_add_pd(a.x, b.x)}; }
inline Lane<double> operator-(Lane<double> a, Lane<double> b) { return {_mm512_sub_pd(a.x, b.x)}; }
inline Lane<double> operator*(Lane<double> a, Lane<double> b) { return {_mm512_mul_pd(a.x, b.x)}; }
inline Lane<double> operator/(Lane<double> a, Lane<double> b) { return {_mm512_div_pd(a.x, b.x)}; }
inline Lane<double> fma(Lane<double> a, Lane<double> b, Lane<double> c) {
  return {_mm512_fmadd_pd(a.x, b.x, c.x)};
}
inline Lane<double> sqrt(Lane<double> a) { return {_mm512_sqrt_pd(a.x)}; }
inline Lane<double> max_or_nan(Lane<double> a, Lane<double> b) {
  const __mmask8 a_is_nan = _mm512_cmp_pd_mask(a.x, a.x, _CMP_UNORD_Q);
  return {_mm512_mask_mov_pd(_mm512_max_pd(a.x, b.x), a_is_nan, a.x)};
}

// Sixteen running sums of squares: element i goes to sum i % 16.
template <typename T>
struct SquareSums;

template <>
struct SquareSums<float> {
  __m512d first = _mm512_setzero_pd(), second = _mm512_setzero_pd();
  void add16(const float* x) { add(_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)); }
  // Of x * factor * second_factor.
  void add16(const float* x, float factor, float second_factor) {
    const __m256 f = _mm256_set1_ps(factor), s = _mm256_set1_ps(second_factor);
    add(_mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x), f), s),
        _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8), f), s));
  }
  void get(double* to) const {
    _mm512_storeu_pd(to, first);
    _mm512_storeu_pd(to + 8, second);
  }

 private:
  void add(__m256 x, __m256 y) {
    const __m512d a = _mm512_cvtps_pd(x), b = _mm512_cvtps_pd(y);
    first = _mm512_fmadd_pd(a, a, first);
    second = _mm512_fmadd_pd(b, b, second);
  }
};

template <>
struct SquareSums<double> {
  __m512d first = _mm512_setzero_pd(), second = _mm512_setzero_pd();
  void add16(const double* x) { add(_mm512_loadu_pd(x), _mm512_loadu_pd(x + 8)); }
  // Of x * factor * second_factor.
  void add16(const double* x, double factor, double second_factor) {
    const __m512d f = _mm512_set1_pd(factor), s = _mm512_set1_pd(second_factor);
    add(_mm512_mul_pd(_mm512_mul_pd(_mm512_loadu_pd(x), f), s),
        _mm512_mul_pd(_mm512_mul_pd(_mm512_loadu_pd(x + 8), f), s));
  }
  void get(double* to) const {
    _mm512_storeu_pd(to, first);
    _mm512_storeu_pd(to + 8, second);
  }

 private:
  void add(__m512d a, __m512d b) {
    first = _mm512_fmadd_pd(a, a, first);
    second = _mm512_fmadd_pd(b, b, second);
  }
};

}  // namespace
}  // namespace torchamp::kernels
