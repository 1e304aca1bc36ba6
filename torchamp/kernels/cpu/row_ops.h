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

/// A layer norm over each row. weight and bias may be null: 1 and 0.
struct LayerNorm {
  Rows x, out;  ///< of one storage
  const float* weight = nullptr;
  const float* bias = nullptr;
  double eps = 0;
  float* mean = nullptr;  ///< written: one a row
  float* rstd = nullptr;  ///< written: 1 / sqrt(variance + eps)
};

struct LayerNormGrad {
  Rows grad, x, out;              ///< of one storage; `out`, the gradient of x, may have no data
  const float* weight = nullptr;  ///< may be null: 1
  const float* mean = nullptr;
  const float* rstd = nullptr;
  float* sum_of_weight = nullptr;  ///< rows are added to it, one number a column; or null
  float* sum_of_bias = nullptr;    ///< null as sum_of_weight is
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
  /// Of kF32, kBf16 or kF16 numbers; formula/gelu.h. `out` may be `x`.
  void (*gelu)(Storage storage, bool is_tanh, const void* x, void* out, int64_t count);
  /// grad times the derivative at x; `out` may be `grad`.
  void (*gelu_backward)(Storage storage, bool is_tanh, const void* grad, const void* x, void* out,
                        int64_t count);
  void (*layer_norm)(const LayerNorm& norm, int64_t columns, RowRange rows);
  void (*layer_norm_backward)(const LayerNormGrad& norm, int64_t columns, RowRange rows);
};

}  // namespace torchamp::kernels
