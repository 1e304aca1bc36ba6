#include "torchamp/ops/channel_vector.h"

#include <cmath>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "torchamp/ops/optional_tensor.h"

namespace torchamp::ops::detail {
namespace {

template <typename F>
void with_numbers(const at::Tensor& tensor, const F& visit) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      visit(static_cast<float*>(tensor.data_ptr()));
      break;
    case at::kBFloat16:
      visit(static_cast<c10::BFloat16*>(tensor.data_ptr()));
      break;
    default:
      visit(static_cast<c10::Half*>(tensor.data_ptr()));
  }
}

// mean[c] and invstd[c] are each rounded to float32 where the kernels read them, and so is this
// product.
std::vector<double> scales(const ChannelStatistics& statistics,
                           const std::optional<at::Tensor>& weight) {
  std::vector<double> scale = statistics.invstd;
  if (is_given(weight)) {
    const std::vector<double> w = read_channels(*weight);
    for (size_t c = 0; c < scale.size(); ++c) scale[c] *= w[c];
  }
  return scale;
}

double inverse_root(double variance, double eps) {
  if (variance == 0 && eps == 0) return 0;
  return 1 / std::sqrt(variance + eps);
}

}  // namespace

bool is_channel_vector(const at::Tensor& tensor, int64_t channels) {
  return is_image_tensor(tensor) && tensor.dim() == 1 && tensor.size(0) == channels &&
         tensor.is_contiguous();
}

std::vector<double> read_channels(const at::Tensor& tensor) {
  std::vector<double> numbers(static_cast<size_t>(tensor.numel()));
  with_numbers(tensor, [&](const auto* from) {
    for (size_t c = 0; c < numbers.size(); ++c) numbers[c] = static_cast<float>(from[c]);
  });
  return numbers;
}

void write_channels(const std::vector<double>& numbers, const at::Tensor& to) {
  with_numbers(to, [&](auto* target) {
    for (size_t c = 0; c < numbers.size(); ++c) target[c] = static_cast<float>(numbers[c]);
  });
}

ChannelStatistics batch_statistics(const ChannelRows& rows, const at::Tensor& x, double eps) {
  ChannelSums moments = channel_moments(rows, x.const_data_ptr());
  ChannelStatistics statistics;
  statistics.mean = std::move(moments.first);
  statistics.spread = std::move(moments.second);
  statistics.count = rows.count;
  for (const double spread : statistics.spread) {
    statistics.invstd.push_back(inverse_root(spread / static_cast<double>(rows.count), eps));
  }
  return statistics;
}

ChannelStatistics saved_statistics(const at::Tensor& mean, const at::Tensor& invstd) {
  ChannelStatistics statistics;
  statistics.mean = read_channels(mean);
  statistics.invstd = read_channels(invstd);
  return statistics;
}

ChannelStatistics constant_statistics(const at::Tensor& mean, const at::Tensor& var, double eps) {
  ChannelStatistics statistics = saved_statistics(mean, var);
  for (double& x : statistics.invstd) x = 1 / std::sqrt(x + eps);
  return statistics;
}

void update_running(const ChannelStatistics& statistics, double momentum,
                    const std::optional<at::Tensor>& running_mean,
                    const std::optional<at::Tensor>& running_var) {
  const auto update = [&](const std::optional<at::Tensor>& running, const std::vector<double>& of,
                          double divisor) {
    if (!is_given(running)) return;
    std::vector<double> numbers = read_channels(*running);
    for (size_t c = 0; c < numbers.size(); ++c) {
      numbers[c] = momentum * (of[c] / divisor) + (1 - momentum) * numbers[c];
    }
    write_channels(numbers, *running);
  };
  update(running_mean, statistics.mean, 1);
  update(running_var, statistics.spread, static_cast<double>(statistics.count - 1));
}

void normalize_channels(const ChannelRows& rows, const ChannelStatistics& statistics,
                        const std::optional<at::Tensor>& weight,
                        const std::optional<at::Tensor>& bias, kernels::NormForward norm) {
  const std::vector<float> mean = rows.spread_out(statistics.mean);
  const std::vector<float> scale = rows.spread_out(scales(statistics, weight));
  const std::vector<float> shift =
      is_given(bias) ? rows.spread_out(read_channels(*bias)) : std::vector<float>(mean.size());
  norm.storage = rows.storage;
  norm.channels = rows.channels * rows.joined;
  norm.mean = mean.data();
  norm.scale = scale.data();
  norm.bias = shift.data();
  channel_normalize(rows, norm);
}

ChannelGradients channel_gradients(const ChannelRows& rows, const ChannelStatistics& statistics,
                                   const std::optional<at::Tensor>& weight, bool training,
                                   bool wants_sums, kernels::NormBackward norm) {
  const bool wants_input = norm.grad_input != nullptr;
  const std::vector<float> mean = rows.spread_out(statistics.mean);
  norm.storage = rows.storage;
  norm.channels = rows.channels * rows.joined;
  norm.mean = mean.data();
  ChannelGradients gradients;
  if (wants_sums || (wants_input && training)) {
    ChannelSums sums = channel_grad_sums(rows, norm);
    gradients.bias = std::move(sums.first);
    gradients.weight = std::move(sums.second);
    for (size_t c = 0; c < gradients.weight.size(); ++c) {
      gradients.weight[c] *= statistics.invstd[c];
    }
  }
  if (!wants_input) return gradients;
  const std::vector<float> scale = rows.spread_out(scales(statistics, weight));
  std::vector<float> grad_mean, slope;
  norm.scale = scale.data();
  if (training) {
    const auto count = static_cast<double>(rows.count);
    std::vector<double> means = gradients.bias, slopes = gradients.weight;
    for (size_t c = 0; c < means.size(); ++c) {
      means[c] /= count;
      slopes[c] *= statistics.invstd[c] / count;
    }
    grad_mean = rows.spread_out(means);
    slope = rows.spread_out(slopes);
    norm.grad_mean = grad_mean.data();
    norm.slope = slope.data();
  } else {
    norm.x = nullptr;
  }
  channel_grad_input(rows, norm);
  return gradients;
}

}  // namespace torchamp::ops::detail
