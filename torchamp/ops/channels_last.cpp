#include "torchamp/ops/channels_last.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <c10/util/strides.h>

#include "torchamp/kernels/cpu/transpose.h"
#include "torchamp/ops/convert.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kGrain = 65536;  // numbers for a thread; they take some 10 us

at::MemoryFormat last_of(const at::Tensor& tensor) {
  return tensor.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast;
}

// `count` matrices, one behind the other on both sides.
void transpose_all(const at::Tensor& from, const at::Tensor& to, int64_t count, int64_t rows,
                   int64_t columns) {
  const auto* source = static_cast<const uint16_t*>(from.const_data_ptr());
  auto* target = static_cast<uint16_t*>(to.mutable_data_ptr());
  if (rows == 1 || columns == 1) {  // one channel, or one pixel
    std::memcpy(target, source, to.nbytes());
    return;
  }
  const int64_t lines = (columns + kernels::kTransposeColumns - 1) / kernels::kTransposeColumns;
  const int64_t grain = std::max<int64_t>(1, kGrain / (kernels::kTransposeColumns * rows));
  at::parallel_for(0, count * lines, grain, [&](int64_t begin, int64_t end) {
    while (begin < end) {
      const int64_t matrix = begin / lines, line = begin % lines;
      const int64_t last = std::min(lines, line + end - begin);
      kernels::transpose(
          {source + matrix * rows * columns, target + matrix * rows * columns, rows, columns},
          line * kernels::kTransposeColumns, std::min(last * kernels::kTransposeColumns, columns));
      begin += last - line;
    }
  });
}

}  // namespace

bool is_contiguous_image(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.dim() == 4 || tensor.dim() == 5) &&
         is_16_bit(tensor.scalar_type()) && tensor.numel() > 0 && tensor.is_contiguous() &&
         tensor.suggest_memory_format() == at::MemoryFormat::Contiguous;
}

at::Tensor to_channels_last(const at::Tensor& tensor) {
  at::Tensor last = at::empty(tensor.sizes(), tensor.options().memory_format(last_of(tensor)));
  const int64_t channels = tensor.size(1);
  const int64_t images = tensor.size(0);
  transpose_all(tensor, last, images, channels, tensor.numel() / images / channels);
  return last;
}

at::Tensor from_channels_last(const at::Tensor& tensor) {
  if (!tensor.defined() || (tensor.dim() != 4 && tensor.dim() != 5)) return tensor;
  if (tensor.strides() == c10::IntArrayRef(c10::contiguous_strides(tensor.sizes()))) return tensor;
  at::Tensor to = at::empty(tensor.sizes(), tensor.options());
  if (!is_16_bit(tensor.scalar_type()) || !tensor.is_contiguous(last_of(tensor)) ||
      tensor.numel() == 0) {
    return to.copy_(tensor);
  }
  const int64_t images = tensor.size(0), channels = tensor.size(1);
  transpose_all(tensor, to, images, tensor.numel() / images / channels, channels);
  return to;
}

}  // namespace torchamp::ops::detail
