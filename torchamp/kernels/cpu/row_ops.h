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

/// Groups of `channels` channels, `pixels` numbers each, one behind the other; `groups` of them
/// make an image. weight and bias, one number for each channel of an image, may be null: 1 and 0.
struct GroupNorm {
  Storage storage = Storage::kNone;
  int64_t groups = 0, channels = 0, pixels = 0;
  const void* x = nullptr;
  void* out = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;
  double eps = 0;
  float* mean = nullptr;  ///< written: one a group
  float* rstd = nullptr;  ///< written: 1 / sqrt(variance + eps)
};

struct GroupNormGrad {
  Storage storage = Storage::kNone;
  int64_t groups = 0, channels = 0, pixels = 0;
  const void* grad = nullptr;
  const void* x = nullptr;
  void* out = nullptr;            ///< the gradient of x; may be null
  const float* weight = nullptr;  ///< may be null: 1
  const float* mean = nullptr;
  const float* rstd = nullptr;
  double* sum = nullptr;  ///< written, for each channel of each image: the sum of grad,
  double* dot = nullptr;  ///< and of grad (x - mean) rstd
};

/// factor * z^2 / 2 where |z| < beta, else factor * beta (|z| - beta / 2), of z = x - y.
struct SmoothL1Loss {
  Storage storage = Storage::kNone;
  const void* x = nullptr;
  const void* y = nullptr;
  float beta = 1;
  float factor = 1;
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
  /// Groups are numbered through all images.
  void (*group_norm)(const GroupNorm& norm, RowRange groups);
  void (*group_norm_backward)(const GroupNormGrad& norm, RowRange groups);
  void (*smooth_l1)(const SmoothL1Loss& loss, void* out, int64_t count);
  double (*smooth_l1_sum)(const SmoothL1Loss& loss, int64_t count);
  /// factor * max(-beta, min(z, beta)) * grad; a null `grad` is 1. All of one storage.
  void (*smooth_l1_backward)(const SmoothL1Loss& loss, const void* grad, void* out, int64_t count);
  /// sums <- sums + factor * x
  void (*add_row)(Storage storage, const void* x, float factor, float* sums, int64_t count);
  /// out <- of_x * x + of_y * y; a null `x` is 0. `out` has the storage of `x`, and may be it.
  void (*scale_and_add_row)(Storage storage, const void* x, float of_x, const float* y, float of_y,
                            void* out, int64_t count);
};

}  // namespace torchamp::kernels
