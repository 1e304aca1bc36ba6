// Max pooling of dense channels_last images on CPU. Forward keeps the running maxima in registers;
// backward, in 16 bits, gathers, pixel by pixel, so nothing is filled with zeros first and threads
// share images.

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <tuple>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices_backward_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/channel_rows.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kFewestNumbers = 16384;          // below, the call costs more than the loop
constexpr int64_t kGrain = 16384;                  // numbers
constexpr int64_t kMostPixels = int64_t{1} << 24;  // places in an image, as float32 counts them

bool is_channels_last(const at::Tensor& x) {
  return x.dim() == 4 && x.suggest_memory_format() == at::MemoryFormat::ChannelsLast &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast);
}

int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                    int64_t dilation) {
  return (size + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

// Nothing where the kernels do not take the call, or LibTorch would refuse it.
std::optional<kernels::MaxPool> pooling(const at::Tensor& x, at::IntArrayRef kernel,
                                        at::IntArrayRef stride, at::IntArrayRef padding,
                                        at::IntArrayRef dilation) {
  if (!is_image_tensor(x) || !is_channels_last(x) || x.numel() < kFewestNumbers ||
      x.size(1) % kernels::kChannelGroup != 0 || x.size(2) * x.size(3) > kMostPixels) {
    return std::nullopt;
  }
  const auto pair = [](at::IntArrayRef values) -> std::array<int64_t, 2> {
    if (values.size() == 1) return {values[0], values[0]};
    return values.size() == 2 ? std::array<int64_t, 2>{values[0], values[1]}
                              : std::array<int64_t, 2>{-1, -1};
  };
  const auto [kernel_height, kernel_width] = pair(kernel);
  const auto [stride_height, stride_width] = pair(stride.empty() ? kernel : stride);
  const auto [padding_height, padding_width] = pair(padding);
  const auto [dilation_height, dilation_width] = pair(dilation);
  const bool is_valid = std::min({kernel_height, kernel_width, stride_height, stride_width,
                                  dilation_height, dilation_width}) > 0 &&
                        std::min(padding_height, padding_width) >= 0 &&
                        2 * padding_height <= kernel_height && 2 * padding_width <= kernel_width &&
                        // the window fits into the padded image
                        (kernel_height - 1) * dilation_height < x.size(2) + 2 * padding_height &&
                        (kernel_width - 1) * dilation_width < x.size(3) + 2 * padding_width;
  if (!is_valid) return std::nullopt;
  kernels::MaxPool pool;
  pool.storage = image_storage(x.scalar_type());
  pool.channels = x.size(1);
  pool.height = x.size(2);
  pool.width = x.size(3);
  pool.kernel_height = kernel_height;
  pool.kernel_width = kernel_width;
  pool.stride_height = stride_height;
  pool.stride_width = stride_width;
  pool.padding_height = padding_height;
  pool.padding_width = padding_width;
  pool.dilation_height = dilation_height;
  pool.dilation_width = dilation_width;
  pool.output_height =
      output_size(pool.height, kernel_height, stride_height, padding_height, dilation_height);
  pool.output_width =
      output_size(pool.width, kernel_width, stride_width, padding_width, dilation_width);
  return pool;
}

// Of float32 LibTorch's kernel takes windows of four pixels in 0.8 of our time, on one thread, and
// the backward pass of nine pixels in 0.8 to 0.9 (bench_ops).
bool is_faster(const kernels::MaxPool& pool) {
  return pool.storage != kernels::Storage::kF32 || pool.kernel_height * pool.kernel_width > 4;
}
bool is_faster_backward(const kernels::MaxPool& pool) {
  return pool.storage != kernels::Storage::kF32;
}

int64_t grain(int64_t numbers_of_row) { return std::max<int64_t>(1, kGrain / numbers_of_row); }

std::optional<std::tuple<at::Tensor, at::Tensor>> max_pool(
    const at::Tensor& x, at::IntArrayRef kernel, at::IntArrayRef stride, at::IntArrayRef padding,
    at::IntArrayRef dilation, bool ceil_mode) {
  const auto pool = ceil_mode ? std::nullopt : pooling(x, kernel, stride, padding, dilation);
  if (!pool.has_value() || !is_faster(*pool)) return std::nullopt;
  const std::array<int64_t, 4> sizes = {x.size(0), x.size(1), pool->output_height,
                                        pool->output_width};
  const auto options = x.options().memory_format(at::MemoryFormat::ChannelsLast);
  at::Tensor y = at::empty(sizes, options), indices = at::empty(sizes, options.dtype(at::kLong));
  const void* from = x.const_data_ptr();
  void* to = y.mutable_data_ptr();
  auto* places = indices.mutable_data_ptr<int64_t>();
  const kernels::KernelTable& table = kernels::cpu_table();
  at::parallel_for(0, sizes[0] * sizes[2], grain(sizes[3] * sizes[1]),
                   [&](int64_t begin, int64_t end) {
                     table.image.max_pool(*pool, from, to, places, {begin, end});
                   });
  return std::tuple(std::move(y), std::move(indices));
}

bool goes_with(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& indices) {
  return is_image_tensor(grad) && is_channels_last(grad) && grad.scalar_type() == x.scalar_type() &&
         grad.size(0) == x.size(0) && grad.size(1) == x.size(1) && indices.device().is_cpu() &&
         indices.layout() == at::kStrided && indices.scalar_type() == at::kLong &&
         indices.sizes() == grad.sizes() && is_channels_last(indices);
}

// Nothing where some index lies outside of its window; LibTorch adds such gradients up, too.
std::optional<at::Tensor> gather(const kernels::MaxPool& pool, const at::Tensor& grad,
                                 const at::Tensor& x, const at::Tensor& indices) {
  at::Tensor grad_input = at::empty_like(x, at::MemoryFormat::ChannelsLast);
  const void* from = grad.const_data_ptr();
  void* to = grad_input.mutable_data_ptr();
  const auto* places = indices.const_data_ptr<int64_t>();
  const kernels::KernelTable& table = kernels::cpu_table();
  std::atomic<int64_t> num_placed = 0;
  at::parallel_for(
      0, x.size(0) * pool.height, grain(pool.width * pool.channels),
      [&](int64_t begin, int64_t end) {
        num_placed += table.image.max_pool_backward(pool, from, places, to, {begin, end});
      });
  if (num_placed != grad.numel()) return std::nullopt;
  return grad_input;
}

std::optional<at::Tensor> max_pool_backward(const at::Tensor& grad, const at::Tensor& x,
                                            at::IntArrayRef kernel, at::IntArrayRef stride,
                                            at::IntArrayRef padding, at::IntArrayRef dilation,
                                            bool /*ceil_mode*/, const at::Tensor& indices) {
  auto pool = pooling(x, kernel, stride, padding, dilation);
  if (!pool.has_value() || !is_faster_backward(*pool) || !goes_with(grad, x, indices)) {
    return std::nullopt;
  }
  pool->output_height = grad.size(2);  // ceil_mode or not
  pool->output_width = grad.size(3);
  return gather(*pool, grad, x, indices);
}

}  // namespace

void add_max_pool(OpTable& table) {
  namespace op = at::_ops;
  add_ours_first<op::max_pool2d_with_indices, &max_pool>(table, kFloat32And16Bits,
                                                         "keeps its maxima in memory");
  add_ours_first<op::max_pool2d_with_indices_backward, &max_pool_backward>(
      table, k16Bit, "fills with zeros first, and adds number by number");
}

}  // namespace torchamp::ops::detail
