#pragma once
// ProductKernels: products of 16-bit matrices that lie in any order in memory, read as they lie:
// no float32 copies are made. Pointers are trusted.

#include <cstdint>

#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {

/// 16-bit numbers; element (i, j) is data[i * row_stride + j * column_stride].
struct Matrix16 {
  uint16_t* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 0;
};

/// out <- beta * self + alpha * a b. a is rows x inner, b is inner x columns.
struct Product {
  Storage storage = Storage::kNone;  ///< of all matrices: kBf16 or kF16
  int64_t rows = 0, inner = 0, columns = 0;
  Matrix16 a, b;
  Matrix16 self;  ///< read where it has data; may be `out`
  Matrix16 out;   ///< no memory of a or b
  float alpha = 1.0F;
  float beta = 0.0F;
};

/// What one call computes: rows [row_begin, row_end) of columns [column_begin, column_end).
struct ProductPart {
  int64_t row_begin = 0, row_end = 0;
  int64_t column_begin = 0, column_end = 0;
};

/// Products and sums are float32, the result is rounded once. An element is one chain of fused
/// multiply-adds, or, for few rows times a matrix whose columns are contiguous, sixteen chains and
/// a tree; the bits depend neither on the table nor on the parts.
struct ProductKernels {
  /// float32 numbers of scratch, aligned to 64 bytes, that a part of the product needs at most.
  int64_t (*scratch)(const Product& product);
  void (*multiply)(const Product& product, const ProductPart& part, float* scratch);
};

}  // namespace torchamp::kernels
