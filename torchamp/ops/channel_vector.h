#pragma once
// What batch norm does with one number a channel: statistics, parameters, their gradients.
// Internal.

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "torchamp/ops/channel_rows.h"

namespace torchamp::ops::detail {

/// A dense CPU vector of Float, BFloat16 or Half, a number for each channel.
bool is_channel_vector(const at::Tensor& tensor, int64_t channels);

std::vector<double> read_channels(const at::Tensor& tensor);
/// Rounds once, from float64.
void write_channels(const std::vector<double>& numbers, const at::Tensor& to);

struct ChannelStatistics {
  std::vector<double> mean;
  std::vector<double> invstd;  ///< 1 / sqrt(biased variance + eps); 0 where that is 1 / 0
  std::vector<double> spread;  ///< of the batch: sum of squared distances; else empty
  int64_t count = 0;
};
ChannelStatistics batch_statistics(const ChannelRows& rows, const at::Tensor& x, double eps);
/// Those that a forward pass kept.
ChannelStatistics saved_statistics(const at::Tensor& mean, const at::Tensor& invstd);
/// Those that evaluation mode takes as they are.
ChannelStatistics constant_statistics(const at::Tensor& mean, const at::Tensor& var, double eps);

/// running <- momentum * of the batch + (1 - momentum) * running, with the unbiased variance.
void update_running(const ChannelStatistics& statistics, double momentum,
                    const std::optional<at::Tensor>& running_mean,
                    const std::optional<at::Tensor>& running_var);

/// Fills in what `norm` lacks (all but its large arrays and relu) and runs it. An absent weight is
/// 1, an absent bias 0.
void normalize_channels(const ChannelRows& rows, const ChannelStatistics& statistics,
                        const std::optional<at::Tensor>& weight,
                        const std::optional<at::Tensor>& bias, kernels::NormForward norm);

struct ChannelGradients {
  std::vector<double> weight, bias;  ///< empty where nothing asked for the sums
};
/// The same for the backward pass, where norm.grad_input is not null. `wants_sums`: the gradients
/// of weight and bias are wanted.
ChannelGradients channel_gradients(const ChannelRows& rows, const ChannelStatistics& statistics,
                                   const std::optional<at::Tensor>& weight, bool training,
                                   bool wants_sums, kernels::NormBackward norm);

}  // namespace torchamp::ops::detail
