// float16 pooling on CPU, through LibTorch's own float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_ops.h>
#include <ATen/ops/avg_pool3d_backward_ops.h>
#include <ATen/ops/avg_pool3d_ops.h>
#include <ATen/ops/col2im_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

constexpr const char* kPooling = "LibTorch has no fp16 kernel";
constexpr const char* kAdaptive = "fp16 is 15 times slower than fp32";
constexpr const char* kAdaptive2d = "rounds the running sum of a gradient to fp16";
constexpr const char* kCol2im = "rounds the running sum to fp16, and is 6 times slower than fp32";

}  // namespace

void add_half_layers(OpTable& table) {
  namespace op = at::_ops;
  add_half_op<op::avg_pool3d>(table, kPooling);
  add_half_op<op::avg_pool3d_out>(table, kPooling);
  add_half_op<op::avg_pool3d_backward>(table, kPooling);
  add_half_op<op::avg_pool3d_backward_grad_input>(table, kPooling);
  add_half_op<op::_adaptive_avg_pool2d_backward>(table, kAdaptive2d);
  add_half_op<op::_adaptive_avg_pool3d>(table, kAdaptive);
  add_half_op<op::_adaptive_avg_pool3d_backward>(table, kAdaptive);
  add_half_op<op::col2im>(table, kCol2im);
}

}  // namespace torchamp::ops::detail
