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

void add_half_losses(std::vector<OpKernel>& table) {
  namespace op = at::_ops;
  const auto add = [&table]<class Op, HalfOpRule rule = HalfOpRule{}>(const char* reason) {
    table.push_back(
        op_kernel<Op, HalfOp<Op, rule>>(kFloat16, reason, /*is_for_cpus_without_fp16=*/false));
  };
  // CTC's table of log probabilities stays float32 from the forward to the backward pass.
  constexpr HalfOpRule kKeepsTable{.float_outputs = 0b10};
  constexpr HalfOpRule kTakesTable{.allows_float = true};
  add.operator()<op::_ctc_loss, kKeepsTable>(kAbsent);
  add.operator()<op::_ctc_loss_Tensor, kKeepsTable>(kAbsent);
  add.operator()<op::_ctc_loss_backward, kTakesTable>(kAbsent);
  add.operator()<op::_ctc_loss_backward_Tensor, kTakesTable>(kAbsent);
  add.operator()<op::_pdist_forward>(kAbsent);
  add.operator()<op::_pdist_backward>(kAbsent);
  add.operator()<op::multi_margin_loss>(kAbsent);
  add.operator()<op::multi_margin_loss_backward>(kAbsent);
  add.operator()<op::multilabel_margin_loss_forward>(kAbsent);
  add.operator()<op::multilabel_margin_loss_backward>(kAbsent);
  add.operator()<op::binary_cross_entropy>(kSlow);
  add.operator()<op::binary_cross_entropy_backward>(kSlow);
}

}  // namespace torchamp::ops::detail
