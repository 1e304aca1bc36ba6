#pragma once
// Kernels of the layers around a convolution: batch norm, relu, max pooling. Arguments and results;
// the loops are in batch_norm.inl.h, relu.inl.h and max_pool.inl.h. Numbers are kF32, kBf16 or
// kF16, all arrays of a call alike; arithmetic is float32 and rounds once, at the store.

#include <cstdint>

#include "torchamp/kernels/storage.h"

namespace torchamp::kernels {

struct Range;

/// Channels of a row come in multiples of this; who calls joins rows until they do.
inline constexpr int64_t kChannelGroup = 16;
/// Rows whose sums are added in float32 before they go to float64; ranges of rows begin at
/// multiples of it, so the sums do not depend on how rows are shared out.
inline constexpr int64_t kRowsOfBlock = 64;

/// y <- (x - mean) * scale + bias, + residual, then relu. Rows of `channels` numbers each, one
/// behind the other ("channels last"); mean, scale and bias are float32, one a channel.
struct NormForward {
  Storage storage = Storage::kNone;
  int64_t channels = 0;
  const void* x = nullptr;
  const void* residual = nullptr;  ///< null: none
  void* y = nullptr;
  const float* mean = nullptr;
  const float* scale = nullptr;
  const float* bias = nullptr;
  bool relu = false;
};

/// grad_input <- (g - grad_mean - (x - mean) * slope) * scale, where g is `grad`, but 0 where the
/// output of a relu is not above 0.
struct NormBackward {
  Storage storage = Storage::kNone;
  int64_t channels = 0;
  const void* grad = nullptr;
  const void* x = nullptr;       ///< null: grad_mean and slope are 0 (statistics were constants)
  const void* output = nullptr;  ///< of the relu; null: there is none
  void* grad_input = nullptr;
  void* grad_residual = nullptr;  ///< gets g; null: not wanted
  const float* mean = nullptr;
  const float* grad_mean = nullptr;
  const float* slope = nullptr;
  const float* scale = nullptr;
};

/// A window that moves over images of height x width pixels, `channels` numbers each.
struct MaxPool {
  Storage storage = Storage::kNone;
  int64_t channels = 0;
  int64_t height = 0, width = 0, output_height = 0, output_width = 0;
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t stride_height = 0, stride_width = 0;
  int64_t padding_height = 0, padding_width = 0;
  int64_t dilation_height = 0, dilation_width = 0;
};

struct ImageKernels {
  /// sum[c] <- sum of x, spread[c] <- sum of squared distances from the mean, over the rows.
  /// Float64: a block's sums are taken around the mean of the block before, in float32.
  void (*moments)(Storage storage, int64_t channels, const void* x, Range rows, double* sum,
                  double* spread);
  void (*normalize)(const NormForward& norm, Range rows);
  /// sum[c] <- sum of g, dot[c] <- sum of g * (x - mean), over the rows.
  void (*grad_sums)(const NormBackward& norm, Range rows, double* sum, double* dot);
  void (*grad_input)(const NormBackward& norm, Range rows);
  /// y <- x, but 0 where x < 0; NaN and -0 stay.
  void (*relu)(Storage storage, const void* x, void* y, Range range);
  /// out <- grad, but 0 where x <= 0.
  void (*relu_backward)(Storage storage, const void* grad, const void* x, void* out, Range range);
  /// The largest number of each window and its place in the image; the first of equals, the last
  /// NaN. Rows of output pixels, numbered through all images. height * width <= 2^24.
  void (*max_pool)(const MaxPool& pool, const void* x, void* y, int64_t* indices, Range rows);
  /// Adds up, for each input pixel, the gradients (kBf16, kF16) of the windows whose maximum it
  /// was, in their order, each sum rounded. Rows of input pixels, numbered through all images.
  /// Returns how many gradients it has placed: fewer than there are where an index lies outside of
  /// its window.
  int64_t (*max_pool_backward)(const MaxPool& pool, const void* grad, const int64_t* indices,
                               void* grad_input, Range rows);
};

}  // namespace torchamp::kernels
