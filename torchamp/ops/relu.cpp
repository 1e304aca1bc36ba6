// relu and its backward pass on dense 16-bit CPU tensors, on the bits of the numbers: they are not
// converted to float32 and back. LibTorch's float32 kernels are as fast as memory.

#include <optional>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/threshold_backward_ops.h>

#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/channel_rows.h"
#include "torchamp/ops/op_kernel.h"
#include "torchamp/ops/ours_first.h"

namespace torchamp::ops::detail {
namespace {

constexpr int64_t kFewestNumbers = 16384;  // below, the call costs more than the loop
constexpr int64_t kGrain = 65536;

bool is_dense(const at::Tensor& x) {
  return is_image_tensor(x) && x.element_size() == 2 && x.numel() >= kFewestNumbers &&
         x.is_non_overlapping_and_dense();
}

void relu_of(const at::Tensor& x, const at::Tensor& y) {
  const auto storage = image_storage(x.scalar_type());
  const void* from = x.const_data_ptr();
  void* to = y.mutable_data_ptr();
  const kernels::KernelTable& table = kernels::cpu_table();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    table.image.relu(storage, from, to, {begin, end});
  });
}

std::optional<at::Tensor> relu(const at::Tensor& x) {
  if (!is_dense(x)) return std::nullopt;
  at::Tensor y = at::empty_like(x);
  relu_of(x, y);
  return y;
}

at::Tensor* relu_(at::Tensor& x) {
  if (!is_dense(x)) return nullptr;
  relu_of(x, x);
  return &x;
}

std::optional<at::Tensor> threshold_backward(const at::Tensor& grad, const at::Tensor& x,
                                             const at::Scalar& threshold) {
  const bool takes = is_dense(grad) && is_image_tensor(x) &&
                     grad.scalar_type() == x.scalar_type() && grad.sizes() == x.sizes() &&
                     grad.strides() == x.strides() && !threshold.isComplex() &&
                     threshold.toDouble() == 0;
  if (!takes) return std::nullopt;
  at::Tensor out = at::empty_like(grad);
  const auto storage = image_storage(x.scalar_type());
  const void *from = grad.const_data_ptr(), *of = x.const_data_ptr();
  void* to = out.mutable_data_ptr();
  const kernels::KernelTable& table = kernels::cpu_table();
  at::parallel_for(0, x.numel(), kGrain, [&](int64_t begin, int64_t end) {
    table.image.relu_backward(storage, from, of, to, {begin, end});
  });
  return out;
}

}  // namespace

void add_relu(OpTable& table) {
  namespace op = at::_ops;
  constexpr const char* kReason = "converts to float32 and back";
  add_ours_first<op::relu, &relu>(table, k16Bit, kReason);
  add_ours_first<op::relu_, &relu_>(table, k16Bit, kReason);
  add_ours_first<op::threshold_backward, &threshold_backward>(table, k16Bit, kReason);
}

}  // namespace torchamp::ops::detail
