// float16 losses and distances on CPU, through LibTorch's own float32 kernels.

#include <ATen/core/Tensor.h>
#include <ATen/ops/_ctc_loss_backward_ops.h>
#include <ATen/ops/_ctc_loss_ops.h>
#include <ATen/ops/_pdist_backward_ops.h>
#include <ATen/ops/_pdist_forward_ops.h>
#include <ATen/ops/binary_cross_entropy_backward_ops.h>
#include <ATen/ops/binary_cross_entropy_ops.h>
#include <ATen/ops/multi_margin_loss_backward_ops.h>
#include <ATen/ops/multi_margin_loss_ops.h>
#include <ATen/ops/multilabel_margin_loss_backward_ops.h>
#include <ATen/ops/multilabel_margin_loss_forward_ops.h>

#include "torchamp/ops/half_op.h"
#include "torchamp/ops/op_kernel.h"

namespace torchamp::ops::detail {
namespace {

constexpr const char* kAbsent = "LibTorch has no fp16 kernel";
constexpr const char* kSlow = "fp16 is 8 times slower than fp32";

}  // namespace

void add_half_losses(OpTable& table) {
  namespace op = at::_ops;
  // CTC's table of log probabilities stays float32 from the forward to the backward pass.
  constexpr HalfOpRule kKeepsTable{.float_outputs = 0b10};
  constexpr HalfOpRule kTakesTable{.allows_float = true};
  add_half_op<op::_ctc_loss, kKeepsTable>(table, kAbsent);
  add_half_op<op::_ctc_loss_Tensor, kKeepsTable>(table, kAbsent);
  add_half_op<op::_ctc_loss_backward, kTakesTable>(table, kAbsent);
  add_half_op<op::_ctc_loss_backward_Tensor, kTakesTable>(table, kAbsent);
  add_half_op<op::_pdist_forward>(table, kAbsent);
  add_half_op<op::_pdist_backward>(table, kAbsent);
  add_half_op<op::multi_margin_loss>(table, kAbsent);
  add_half_op<op::multi_margin_loss_backward>(table, kAbsent);
  add_half_op<op::multilabel_margin_loss_forward>(table, kAbsent);
  add_half_op<op::multilabel_margin_loss_backward>(table, kAbsent);
  add_half_op<op::binary_cross_entropy>(table, kSlow);
  add_half_op<op::binary_cross_entropy_backward>(table, kSlow);
}

}  // namespace torchamp::ops::detail
