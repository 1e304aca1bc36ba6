// float16 recurrent layers and pooling on CPU, through LibTorch's own
// float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_backward_ops.h>
#include <ATen/ops/_adaptive_avg_pool3d_ops.h>
#include <ATen/ops/avg_pool3d_backward_ops.h>
#include <ATen/ops/avg_pool3d_ops.h>
#include <ATen/ops/col2im_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_ops.h>
#include <ATen/ops/mkldnn_rnn_layer_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

constexpr const char* kRecurrent = "LibTorch has no fp16 LSTM layer for this CPU";
constexpr const char* kPooling = "LibTorch has no fp16 kernel";
constexpr const char* kAdaptive = "fp16 is 15 times slower than fp32";
constexpr const char* kAdaptive2d = "rounds the running sum of a gradient to fp16";
constexpr const char* kCol2im = "rounds the running sum to fp16, and is 6 times slower than fp32";

}  // namespace

void add_half_layers(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op>(const char* reason, bool for_no_fp16) {
    table.push_back(op_kernel<Op, HalfOp<Op>>(kFloat16, reason, for_no_fp16));
  };
  add.operator()<op::mkldnn_rnn_layer>(kRecurrent, true);
  add.operator()<op::mkldnn_rnn_layer_backward>(kRecurrent, true);
  add.operator()<op::avg_pool3d>(kPooling, false);
  add.operator()<op::avg_pool3d_out>(kPooling, false);
  add.operator()<op::avg_pool3d_backward>(kPooling, false);
  add.operator()<op::avg_pool3d_backward_grad_input>(kPooling, false);
  add.operator()<op::_adaptive_avg_pool2d_backward>(kAdaptive2d, false);
  add.operator()<op::_adaptive_avg_pool3d>(kAdaptive, false);
  add.operator()<op::_adaptive_avg_pool3d_backward>(kAdaptive, false);
  add.operator()<op::col2im>(kCol2im, false);
}

}  // namespace torchamp::ops::detail
