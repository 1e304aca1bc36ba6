// The ProductKernels of a table. Include after sixteen.inl.h.
//
// A tile of sums stays in registers while k runs over the inner dimension. The left side is widened
// to float32 in blocks of rows; of the right side, rows that are contiguous are widened where they
// lie, others in panels of columns.

#include "torchamp/kernels/cpu/product.h"

namespace torchamp::kernels {
namespace {
namespace product {

constexpr bool kHas32Registers = Lane<float>::kWidth == 16;  // of sixteen numbers; else 16 of eight
// A tile is kTileRows rows of kWide vectors, or up to kMostRows of one vector: 24 of 32 registers
// hold sums (12 of 16), which is as many as the multipliers' latency wants and more.
constexpr int64_t kWide = kHas32Registers ? 4 : 1;
constexpr int64_t kTileRows = 6;
constexpr int64_t kMostRows = kHas32Registers ? 16 : kTileRows;
constexpr int64_t kRowVectors = kHas32Registers ? 8 : 4;  // of a single row

constexpr int64_t kRowBlock = 48;    // whole tiles, and whole vectors where columns are contiguous
constexpr int64_t kShortBlock = 16;  // the same of long sums
constexpr int64_t kBlockSize = 32768;  // numbers of a block or panel: 128 KiB, in the second cache
constexpr int64_t kPanelColumns = 64;
// Up to so many rows, columns that are contiguous are multiplied where they lie: a panel would be
// used too seldom to pay for its making.
constexpr int64_t kFewRows = 3;
constexpr int kDotColumns = kHas32Registers ? 8 : 4;  // at once

constexpr int64_t up_to(int64_t multiple, int64_t count) {
  return (count + multiple - 1) / multiple * multiple;
}
constexpr int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
constexpr int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }

bool goes_by_dots(const Product& p) { return p.rows <= kFewRows && p.b.row_stride == 1; }
bool needs_panels(const Product& p) { return p.b.column_stride != 1 || p.columns < 16; }
int64_t block_rows(const Product& p) {
  return smaller_of(kRowBlock * p.inner <= kBlockSize ? kRowBlock : kShortBlock, up_to(16, p.rows));
}
int64_t panel_columns(const Product& p) {
  const int64_t fits = kBlockSize / larger_of(1, p.inner) / 16 * 16;
  return smaller_of(larger_of(16, smaller_of(fits, kPanelColumns)), up_to(16, p.columns));
}

int64_t scratch(const Product& p) {
  if (goes_by_dots(p)) return up_to(32, p.inner);
  return up_to(16, block_rows(p) * p.inner) + (needs_panels(p) ? panel_columns(p) * p.inner : 0);
}

// Bf16 and F16 are uint16_t by name.
template <typename E>
E* elements(uint16_t* bits) {
  static_assert(sizeof(E) == sizeof(uint16_t));
  return reinterpret_cast<E*>(bits);
}
float number(const Bf16* from) { return from_bf16(from->bits); }
float number(const F16* from) { return from_f16(from->bits); }

// ---- the two sides in float32 ----

// Rows [begin, end) of the left side. Element (i, k) goes to block[i * row + k * inner].
struct LeftBlock {
  const float* data;
  int64_t row;
  int64_t inner;
};

template <typename E>
LeftBlock widen_left(const Product& p, int64_t begin, int64_t end, float* block) {
  const Matrix16& a = p.a;
  const int64_t rows = end - begin;
  if (a.column_stride != 1 && a.row_stride == 1) {
    const int64_t step = block_rows(p);
    for (int64_t k = 0; k < p.inner; ++k) {
      const E* from = elements<E>(a.data + begin + k * a.column_stride);
      for_each_16(rows, [&](int64_t i, int64_t count) {
        load_16(from + i, count, 0.0F).store(block + k * step + i);
      });
    }
    return {block, 1, step};
  }
  for (int64_t i = 0; i < rows; ++i) {
    const E* from = elements<E>(a.data + (begin + i) * a.row_stride);
    float* to = block + i * p.inner;
    if (a.column_stride == 1) {
      for_each_16(p.inner, [&](int64_t k, int64_t count) {
        load_16(from + k, count, 0.0F).store(to + k, count);
      });
    } else {
      for (int64_t k = 0; k < p.inner; ++k) to[k] = number(from + k * a.column_stride);
    }
  }
  return {block, p.inner, 1};
}

// Sixteen rows of sixteen numbers, turned by squares of a lane's width.
void transpose(Sixteen* rows) {
  constexpr int kWidth = Lane<float>::kWidth;
  Sixteen turned[16];
  for (int i = 0; i < Sixteen::kParts; ++i) {
    for (int j = 0; j < Sixteen::kParts; ++j) {
      Lane<float> square[kWidth];
      for (int r = 0; r < kWidth; ++r) square[r] = rows[i * kWidth + r].part[j];
      transpose_square(square);
      for (int r = 0; r < kWidth; ++r) turned[j * kWidth + r].part[i] = square[r];
    }
  }
  for (int r = 0; r < 16; ++r) rows[r] = turned[r];
}

// Columns [begin, end) of the right side as rows of `width` numbers; zeros behind.
template <typename E>
void widen_right(const Product& p, int64_t begin, int64_t end, int64_t width, float* panel) {
  const Matrix16& b = p.b;
  for (int64_t j = 0; j < width; j += 16) {
    const int64_t columns = smaller_of(16, end - begin - j);
    uint16_t* from = b.data + (begin + j) * b.column_stride;
    if (b.column_stride == 1) {
      for (int64_t k = 0; k < p.inner; ++k) {
        load_16(elements<E>(from + k * b.row_stride), columns, 0.0F).store(panel + k * width + j);
      }
    } else if (b.row_stride == 1) {
      for_each_16(p.inner, [&](int64_t k, int64_t count) {
        Sixteen square[16];
        for (int64_t c = 0; c < 16; ++c) {
          square[c] = c < columns
                          ? load_16(elements<E>(from + c * b.column_stride + k), count, 0.0F)
                          : Sixteen::all(0.0F);
        }
        transpose(square);
        for (int64_t i = 0; i < count; ++i) square[i].store(panel + (k + i) * width + j);
      });
    } else {
      for (int64_t k = 0; k < p.inner; ++k) {
        for (int64_t c = 0; c < 16; ++c) {
          panel[k * width + j + c] =
              c < columns ? number(elements<E>(from + k * b.row_stride + c * b.column_stride))
                          : 0.0F;
        }
      }
    }
  }
}

// ---- results ----

// `count` numbers of a row of a matrix.
template <typename E>
Sixteen load_row(const Matrix16& from, int64_t row, int64_t column, int64_t count) {
  const E* first = elements<E>(from.data + row * from.row_stride + column * from.column_stride);
  if (from.column_stride == 1) return load_16(first, count, 0.0F);
  float all[16] = {};
  for (int64_t i = 0; i < count; ++i) all[i] = number(first + i * from.column_stride);
  return Sixteen::load(all);
}

// Whether a sum is the result, but for rounding.
bool is_plain(const Product& p) {
  return p.alpha == 1.0F && p.self.data == nullptr && p.out.column_stride == 1;
}

// Up to sixteen sums of a row.
template <typename E>
void finish(const Product& p, int64_t row, int64_t column, const float* sums, int64_t count) {
  float padded[16] = {};
  if (count < 16) memcpy(padded, sums, sizeof(float) * static_cast<size_t>(count));
  Sixteen x = Sixteen::load(count < 16 ? padded : sums);
  if (p.alpha != 1.0F) x = x * Sixteen::all(p.alpha);
  if (p.self.data != nullptr) {
    x = fma(Sixteen::all(p.beta), load_row<E>(p.self, row, column, count), x);
  }
  E* to = elements<E>(p.out.data + row * p.out.row_stride + column * p.out.column_stride);
  if (p.out.column_stride == 1) return x.store(to, count);
  E all[16];
  x.store(all);
  for (int64_t i = 0; i < count; ++i) to[i * p.out.column_stride] = all[i];
}

// ---- tiles ----

// The sums of kRows rows and 16 * kVectors columns: rounded to the rows of `out`, `out_row` apart,
// or, where that is null, to `sums` as they are.
template <typename E, int64_t kRows, int64_t kVectors, typename R>
void tile(const LeftBlock& left, const R* right, int64_t right_row, int64_t inner, E* out,
          int64_t out_row, float* sums) {
  Sixteen sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) sum[r][v] = Sixteen::all(0.0F);
  }
  const float* a = left.data;
  for (int64_t k = 0; k < inner; ++k) {
    Sixteen b[kVectors];
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) b[v] = Sixteen::load(right + 16 * v);
#pragma GCC unroll 16
    for (int64_t r = 0; r < kRows; ++r) {
      const Sixteen x = Sixteen::all(a[r * left.row]);
#pragma GCC unroll 8
      for (int64_t v = 0; v < kVectors; ++v) sum[r][v] = fma(x, b[v], sum[r][v]);
    }
    a += left.inner;
    right += right_row;
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int64_t v = 0; v < kVectors; ++v) {
      if (out != nullptr) {
        sum[r][v].store(out + r * out_row + 16 * v);
      } else {
        sum[r][v].store(sums + 16 * (r * kVectors + v));
      }
    }
  }
}

// What a tile writes.
struct Place {
  int64_t row, column;
  int64_t skipped;  // columns of the tile that belong to another
  int64_t count;    // columns from there on
};

template <typename E, int64_t kRows, int64_t kVectors, typename R>
void tile_at(const Product& p, const Place& at, const LeftBlock& left, const R* right,
             int64_t right_row) {
  alignas(64) float sums[16 * kRows * kVectors];
  if (is_plain(p) && at.count == 16 * kVectors) {
    return tile<E, kRows, kVectors>(left, right, right_row, p.inner,
                                    elements<E>(p.out.data + at.row * p.out.row_stride) + at.column,
                                    p.out.row_stride, sums);
  }
  tile<E, kRows, kVectors, R>(left, right, right_row, p.inner, nullptr, 0, sums);
  for (int64_t r = 0; r < kRows; ++r) {
    const float* row = sums + 16 * kVectors * r + at.skipped;
    for (int64_t j = 0; j < at.count; j += 16) {
      finish<E>(p, at.row + r, at.column + j, row + j, smaller_of(16, at.count - j));
    }
  }
}

// Tiles of kRows rows while there are so many.
template <typename E, int64_t kRows, int64_t kVectors, typename R>
void tiles_down(const Product& p, Place& at, int64_t& rows, LeftBlock& left, const R* right,
                int64_t right_row) {
  for (; rows >= kRows; rows -= kRows) {
    tile_at<E, kRows, kVectors>(p, at, left, right, right_row);
    at.row += kRows;
    left.data += kRows * left.row;
  }
}

template <typename E, int64_t kVectors, typename R>
void column_of_tiles(const Product& p, Place at, int64_t rows, LeftBlock left, const R* right,
                     int64_t right_row) {
  if constexpr (kVectors == 1) {
    tiles_down<E, kMostRows, 1>(p, at, rows, left, right, right_row);
    if constexpr (kMostRows > 8) tiles_down<E, 8, 1>(p, at, rows, left, right, right_row);
  } else {
    tiles_down<E, kTileRows, kVectors>(p, at, rows, left, right, right_row);
  }
  tiles_down<E, 4, kVectors>(p, at, rows, left, right, right_row);
  tiles_down<E, 2, kVectors>(p, at, rows, left, right, right_row);
  tiles_down<E, 1, kVectors>(p, at, rows, left, right, right_row);
}

// A block of rows times columns [begin, end). Column j of the right side begins at
// right + (j - first); `last` is where the last sixteen that may be read begin.
template <typename E, typename R>
void multiply_block(const Product& p, int64_t row, int64_t rows, const LeftBlock& left,
                    int64_t begin, int64_t end, const R* right, int64_t right_row, int64_t first,
                    int64_t last) {
  int64_t j = begin;
  for (; rows == 1 && j + 16 * kRowVectors <= end; j += 16 * kRowVectors) {
    tile_at<E, 1, kRowVectors>(p, {row, j, 0, 16 * kRowVectors}, left, right + (j - first),
                               right_row);
  }
  for (; kWide > 1 && j + 16 * kWide <= end; j += 16 * kWide) {
    column_of_tiles<E, kWide>(p, {row, j, 0, 16 * kWide}, rows, left, right + (j - first),
                              right_row);
  }
  for (; j < end; j += 16) {
    const int64_t from = smaller_of(j, last);
    column_of_tiles<E, 1>(p, {row, j, j - from, smaller_of(16, end - j)}, rows, left,
                          right + (from - first), right_row);
  }
}

template <typename E>
void multiply_by_tiles(const Product& p, const ProductPart& part, float* scratch) {
  float* block = scratch;
  float* panel = scratch + up_to(16, block_rows(p) * p.inner);
  const bool has_panels = needs_panels(p);
  const int64_t step = has_panels ? panel_columns(p) : part.column_end - part.column_begin;
  for (int64_t begin = part.column_begin; begin < part.column_end; begin += step) {
    const int64_t end = smaller_of(begin + step, part.column_end);
    const int64_t width = up_to(16, end - begin);
    if (has_panels) widen_right<E>(p, begin, end, width, panel);
    for (int64_t row = part.row_begin; row < part.row_end; row += block_rows(p)) {
      const int64_t row_end = smaller_of(row + block_rows(p), part.row_end);
      const LeftBlock left = widen_left<E>(p, row, row_end, block);
      if (has_panels) {
        multiply_block<E>(p, row, row_end - row, left, begin, end, panel, width, begin,
                          begin + width - 16);
      } else {
        multiply_block<E>(p, row, row_end - row, left, begin, end, elements<E>(p.b.data),
                          p.b.row_stride, 0, p.columns - 16);
      }
    }
  }
}

// ---- rows times contiguous columns ----

// Sixteen partial sums of each of kColumns columns; `a` is padded with zeros to 32.
template <int kColumns, typename E>
void partial_sums(const float* a, const E* b, int64_t column_stride, int64_t inner, Sixteen* sums) {
  Sixteen sum[kColumns];
#pragma GCC unroll 8
  for (int c = 0; c < kColumns; ++c) sum[c] = Sixteen::all(0.0F);
  int64_t k = 0;
  for (; k + 32 <= inner; k += 32) {  // a line of each column, which may share a place in the cache
    const Sixteen x = Sixteen::load(a + k), y = Sixteen::load(a + k + 16);
#pragma GCC unroll 8
    for (int64_t c = 0; c < kColumns; ++c) {
      sum[c] = fma(x, Sixteen::load(b + c * column_stride + k), sum[c]);
      sum[c] = fma(y, Sixteen::load(b + c * column_stride + k + 16), sum[c]);
    }
  }
  for (; k < inner; k += 16) {
    const Sixteen x = Sixteen::load(a + k);
    for (int64_t c = 0; c < kColumns; ++c) {
      const Sixteen y = load_16(b + c * column_stride + k, smaller_of(16, inner - k), 0.0F);
      sum[c] = fma(x, y, sum[c]);
    }
  }
  for (int64_t c = 0; c < kColumns; ++c) sums[c] = sum[c];
}

// The sum of each of sixteen vectors, by the tree of sum_of().
Sixteen sums_of(Sixteen* x) {
  transpose(x);
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) x[i] = x[i] + x[i + half];
  }
  return x[0];
}

template <typename E>
void multiply_by_dots(const Product& p, const ProductPart& part, float* scratch) {
  for (int64_t row = part.row_begin; row < part.row_end; ++row) {
    const E* a = elements<E>(p.a.data + row * p.a.row_stride);
    for_each_16(p.inner, [&](int64_t k, int64_t count) {
      float all[16] = {};
      if (p.a.column_stride != 1) {
        for (int64_t i = 0; i < count; ++i) all[i] = number(a + (k + i) * p.a.column_stride);
      }
      const Sixteen x = p.a.column_stride == 1 ? load_16(a + k, count, 0.0F) : Sixteen::load(all);
      x.store(scratch + k);
    });
    for (int64_t j = part.column_begin; j < part.column_end; j += 16) {
      const int64_t columns = smaller_of(16, part.column_end - j);
      const E* b = elements<E>(p.b.data + j * p.b.column_stride);
      Sixteen sums[16];
      int64_t c = 0;
      for (; c + kDotColumns <= columns; c += kDotColumns) {
        partial_sums<kDotColumns>(scratch, b + c * p.b.column_stride, p.b.column_stride, p.inner,
                                  sums + c);
      }
      for (; c < columns; ++c) {
        partial_sums<1>(scratch, b + c * p.b.column_stride, p.b.column_stride, p.inner, sums + c);
      }
      for (; c < 16; ++c) sums[c] = Sixteen::all(0.0F);
      float all[16];
      sums_of(sums).store(all);
      finish<E>(p, row, j, all, columns);
    }
  }
}

template <typename E>
void multiply_as(const Product& p, const ProductPart& part, float* scratch) {
  goes_by_dots(p) ? multiply_by_dots<E>(p, part, scratch) : multiply_by_tiles<E>(p, part, scratch);
}

void multiply(const Product& p, const ProductPart& part, float* scratch) {
  p.storage == Storage::kBf16 ? multiply_as<Bf16>(p, part, scratch)
                              : multiply_as<F16>(p, part, scratch);
}

}  // namespace product

constexpr ProductKernels product_kernels() { return {product::scratch, product::multiply}; }

}  // namespace
}  // namespace torchamp::kernels
