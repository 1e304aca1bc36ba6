#pragma once
// Tensors as rows of channels, and the batch-norm kernels over them on all threads. Internal.

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/kernels/cpu/image_ops.h"

namespace torchamp::ops::detail {

/// The storage of a dtype that the image kernels know: Float, BFloat16, Half; else kNone.
kernels::Storage image_storage(at::ScalarType dtype);

/// A strided CPU tensor without names, of numbers that the image kernels know.
bool is_image_tensor(const at::Tensor& tensor);

/// A tensor whose channels lie side by side in memory, and nothing between the rows of them.
struct ChannelRows {
  kernels::Storage storage = kernels::Storage::kNone;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
  int64_t channels = 0;
  int64_t count = 0;   ///< rows: numbers that a channel has
  int64_t joined = 1;  ///< rows that the kernels take as one, for whole groups of channels

  /// Shapes: (N, C), (N, C, H, W) in channels_last, (N, C, D, H, W) in channels_last_3d, of sizes
  ///         that the kernels take; nothing otherwise.
  static std::optional<ChannelRows> of(const at::Tensor& x);
  /// Whether `other` lies in memory as the tensor of `of` does.
  bool holds(const at::Tensor& other, const at::Tensor& x) const;

  /// One float32 for each channel of a joined row.
  std::vector<float> spread_out(const std::vector<double>& of_channels) const;
};

/// Two sums a channel, in float64. The bits do not depend on the number of threads.
struct ChannelSums {
  std::vector<double> first, second;
};

/// Mean, and sum of squared distances from it.
ChannelSums channel_moments(const ChannelRows& rows, const void* x);
/// NormForward, whose arrays of a channel come from spread_out().
void channel_normalize(const ChannelRows& rows, const kernels::NormForward& norm);
/// NormBackward's sum and dot.
ChannelSums channel_grad_sums(const ChannelRows& rows, const kernels::NormBackward& norm);
void channel_grad_input(const ChannelRows& rows, const kernels::NormBackward& norm);

}  // namespace torchamp::ops::detail
