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

void add_half_layers(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op>(const char* reason) {
    table.push_back(
        op_kernel<Op, HalfOp<Op>>(kFloat16, reason, /*is_for_cpus_without_fp16=*/false));
  };
  add.operator()<op::avg_pool3d>(kPooling);
  add.operator()<op::avg_pool3d_out>(kPooling);
  add.operator()<op::avg_pool3d_backward>(kPooling);
  add.operator()<op::avg_pool3d_backward_grad_input>(kPooling);
  add.operator()<op::_adaptive_avg_pool2d_backward>(kAdaptive2d);
  add.operator()<op::_adaptive_avg_pool3d>(kAdaptive);
  add.operator()<op::_adaptive_avg_pool3d_backward>(kAdaptive);
  add.operator()<op::col2im>(kCol2im);
}

}  // namespace torchamp::ops::detail
