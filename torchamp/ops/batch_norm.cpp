// Batch norm on CPU, forward and backward, for dense channels_last tensors: the statistics in one
// pass, in float64 where sums grow long, and a second pass that computes the result.

#include <array>
#include <cmath>
#include <tuple>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>

#include "torchamp/ops/channel_rows.h"
#include "torchamp/ops/channel_vector.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/optional_tensor.h"
#include "torchamp/ops/ours_first.h"

namespace torchamp::ops::detail {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// weight, bias and statistics, of one dtype: the input's or, beside 16 bits, float32.
template <class... Tensors>
std::optional<at::ScalarType> parameter_dtype(const at::Tensor& x, const Tensors&... parameters) {
  std::optional<at::ScalarType> dtype;
  bool fits = true;
  const auto look = [&](const MaybeTensor& each) {
    if (!is_given(each)) return;
    if (!dtype.has_value()) dtype = each->scalar_type();
    fits = fits && is_channel_vector(*each, x.size(1)) && each->scalar_type() == *dtype;
  };
  (look(parameters), ...);
  if (!dtype.has_value()) dtype = x.scalar_type();
  fits = fits && (*dtype == at::kFloat || *dtype == x.scalar_type());
  return fits ? dtype : std::nullopt;
}

std::optional<Three> batch_norm(const at::Tensor& x, const MaybeTensor& weight,
                                const MaybeTensor& bias, const MaybeTensor& running_mean,
                                const MaybeTensor& running_var, bool training, double momentum,
                                double eps) {
  const auto rows = ChannelRows::of(x);
  const auto dtype =
      rows ? parameter_dtype(x, weight, bias, running_mean, running_var) : std::nullopt;
  if (!dtype.has_value() || is_given(running_mean) != is_given(running_var) ||
      !(training || is_given(running_mean))) {
    return std::nullopt;
  }
  const auto options = x.options().dtype(*dtype).memory_format(std::nullopt);
  const at::Tensor save_mean = at::empty({training ? rows->channels : 0}, options);
  const at::Tensor save_invstd = at::empty_like(save_mean);
  const ChannelStatistics statistics = training
                                           ? batch_statistics(*rows, x, eps)
                                           : constant_statistics(*running_mean, *running_var, eps);
  if (training) {
    write_channels(statistics.mean, save_mean);
    write_channels(statistics.invstd, save_invstd);
    update_running(statistics, momentum, running_mean, running_var);
  }
  at::Tensor y = at::empty_like(x, rows->format);
  kernels::NormForward norm;
  norm.x = x.const_data_ptr();
  norm.y = y.mutable_data_ptr();
  normalize_channels(*rows, statistics, weight, bias, norm);
  return Three(std::move(y), save_mean, save_invstd);
}

std::optional<Three> batch_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                         const MaybeTensor& weight, const MaybeTensor& running_mean,
                                         const MaybeTensor& running_var,
                                         const MaybeTensor& save_mean,
                                         const MaybeTensor& save_invstd, bool training, double eps,
                                         const std::array<bool, 3>& wanted) {
  const auto rows = ChannelRows::of(x);
  const MaybeTensor& mean = training ? save_mean : running_mean;
  const MaybeTensor& spread = training ? save_invstd : running_var;
  const auto dtype = rows && rows->holds(grad, x) && is_given(mean) && is_given(spread)
                         ? parameter_dtype(x, weight, running_mean, running_var, mean, spread)
                         : std::nullopt;
  if (!dtype.has_value()) return std::nullopt;
  const ChannelStatistics statistics =
      training ? saved_statistics(*mean, *spread) : constant_statistics(*mean, *spread, eps);
  at::Tensor grad_input;
  if (wanted[0]) grad_input = at::empty_like(x, rows->format);
  kernels::NormBackward norm;
  norm.grad = grad.const_data_ptr();
  norm.x = x.const_data_ptr();
  norm.grad_input = wanted[0] ? grad_input.mutable_data_ptr() : nullptr;
  const ChannelGradients sums =
      channel_gradients(*rows, statistics, weight, training, wanted[1] || wanted[2], norm);
  const auto vector_of = [&](bool is_wanted, const std::vector<double>& numbers) {
    if (!is_wanted) return at::Tensor();
    at::Tensor result =
        at::empty({rows->channels}, x.options().dtype(*dtype).memory_format(std::nullopt));
    write_channels(numbers, result);
    return result;
  };
  return Three(std::move(grad_input), vector_of(wanted[1], sums.weight),
               vector_of(wanted[2], sums.bias));
}

}  // namespace

void add_batch_norm(OpTable& table) {
  namespace op = at::_ops;
  add_ours_first<op::native_batch_norm, &batch_norm>(table, kFloat32And16Bits,
                                                     "reads the input three times");
  add_ours_first<op::native_batch_norm_backward, &batch_norm_backward>(
      table, kFloat32And16Bits, "takes two to three times as long");
}

}  // namespace torchamp::ops::detail
