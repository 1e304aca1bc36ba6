#pragma once
// Products of bfloat16 matrices with float32 sums, for CPUs with avx512_bf16. Include in a file
// compiled for it only.
//
// The instruction multiplies pairs: a word holds two numbers that are neighbours along the
// dimension that is summed, and a product sums over words.

#include <cstdint>

#include <immintrin.h>

namespace torchamp::kernels {
namespace {

inline __m512bh as_pairs(__m512i words) { return __builtin_bit_cast(__m512bh, words); }

/// The left matrix: word k of row m at data[m * row + k * column].
struct LeftWords {
  const uint32_t* data;
  int64_t row;
  int64_t column;
};

/// A tile of kRows x (16 * kVectors) sums, in registers.
template <int kRows, int kVectors>
inline void product_tile(const LeftWords& left, const uint32_t* right, int64_t right_row,
                         int64_t num_words, bool adds, float* out, int64_t out_row) {
  __m512 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) {
      sum[m][v] = adds ? _mm512_loadu_ps(out + m * out_row + 16 * v) : _mm512_setzero_ps();
    }
  }
  const uint32_t* a = left.data;
  for (int64_t k = 0; k < num_words; ++k) {
    __m512i b[kVectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v)
      b[v] = _mm512_loadu_si512(right + k * right_row + 16 * v);
#pragma GCC unroll 8
    for (int64_t m = 0; m < kRows; ++m) {
      const __m512bh pair = as_pairs(_mm512_set1_epi32(static_cast<int>(a[m * left.row])));
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        sum[m][v] = _mm512_dpbf16_ps(sum[m][v], pair, as_pairs(b[v]));
      }
    }
    a += left.column;
  }
#pragma GCC unroll 8
  for (int64_t m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < kVectors; ++v) _mm512_storeu_ps(out + m * out_row + 16 * v, sum[m][v]);
  }
}

inline constexpr int kTileRows =
    6;  // 6 x 4 sums, 4 words of the right and one of the left: 29 of 32 registers

template <int kVectors>
inline void product_columns(int64_t rows, LeftWords left, const uint32_t* right, int64_t right_row,
                            int64_t num_words, bool adds, float* out, int64_t out_row) {
  const auto tile = [&]<int kRows>() {
    product_tile<kRows, kVectors>(left, right, right_row, num_words, adds, out, out_row);
  };
  for (; rows >= kTileRows; rows -= kTileRows) {
    tile.template operator()<kTileRows>();
    left.data += kTileRows * left.row;
    out += kTileRows * out_row;
  }
  switch (rows) {
    case 5:
      return tile.template operator()<5>();
    case 4:
      return tile.template operator()<4>();
    case 3:
      return tile.template operator()<3>();
    case 2:
      return tile.template operator()<2>();
    case 1:
      return tile.template operator()<1>();
    default:
      return;
  }
}

/// out[rows x columns] = left * right, or += where `adds`. `columns` is a multiple of 16; word k of
/// column n of the right matrix is right[k * right_row + n].
inline void product(int64_t rows, int64_t columns, const LeftWords& left, const uint32_t* right,
                    int64_t right_row, int64_t num_words, bool adds, float* out, int64_t out_row) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64) {
    product_columns<4>(rows, left, right + n, right_row, num_words, adds, out + n, out_row);
  }
  for (; n + 16 <= columns; n += 16) {
    product_columns<1>(rows, left, right + n, right_row, num_words, adds, out + n, out_row);
  }
}

}  // namespace
}  // namespace torchamp::kernels
