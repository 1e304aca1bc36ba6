#pragma once
// RowKernels: the ops of a network that look at one row, or one number, at a time. Whatever lies in
// memory, they compute in float32 and round once. Pointers are trusted.

#include <cstdint>

#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {

/// A matrix whose rows are contiguous: kF32, kBf16 or kF16.
struct Rows {
  Storage storage = Storage::kNone;
  void* data = nullptr;
  int64_t stride = 0;  ///< elements from one row to the next
};

/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;
};

/// The largest number of a row, and log(sum(exp(x - largest))): apart, they keep all digits.
struct LogSum {
  float largest;
  float log_of_sum;
};

/// The gradient of one row's loss: of_softmax * softmax(x) - of_weights * weight, less at_target
/// at the target.
struct CrossEntropyGrad {
  float of_softmax = 0;
  float of_weights = 0;
  float at_target = 0;
  int64_t target = 0;
};

/// Arrays that are indexed by row or column begin with the first of the matrix.
struct RowKernels {
  void (*log_sums)(const Rows& x, int64_t columns, RowRange rows, LogSum* sums);
  /// sum(weight * x) of each row; `weight` may be null: 1.
  void (*weighted_sums)(const Rows& x, const float* weight, int64_t columns, RowRange rows,
                        double* sums);
  /// x - log(sum(exp(x))); `out` has the storage of `x`.
  void (*log_softmax)(const Rows& x, const Rows& out, int64_t columns, RowRange rows);
  /// grad - exp(y) * sum(grad), all of one storage; `out` may be `grad`.
  void (*log_softmax_backward)(const Rows& grad, const Rows& y, const Rows& out, int64_t columns,
                               RowRange rows);
  /// `weight` is read where of_weights is not 0, and may be null: 1. `out` has the storage of `x`.
  void (*cross_entropy_backward)(const Rows& x, const LogSum* sums, const CrossEntropyGrad* grads,
                                 const float* weight, const Rows& out, int64_t columns,
                                 RowRange rows);
};

}  // namespace torchamp::kernels
