#include "torchamp/train/objective.h"

#include <ATen/ops/cross_entropy_loss.h>

namespace torchamp::train {

at::Tensor cross_entropy(const at::Tensor& output, const at::Tensor& target) {
  TORCH_CHECK_VALUE(output.dim() == target.dim() + 1, "[cross_entropy] The output has shape ",
                    output.sizes(), " and the target ", target.sizes(),
                    "; logits with one dimension more than the target, the classes, are accepted.");
  return at::cross_entropy_loss(output.flatten(0, -2), target.flatten());
}

Batch place(const Batch& batch, const Placement& placement) {
  Batch placed;
  placed.input = batch.input.to(placement.device, /*non_blocking=*/true);
  placed.target = batch.target.to(placement.device, /*non_blocking=*/true);
  if (placement.channels_last && placed.input.dim() == 4) {
    placed.input = placed.input.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return placed;
}

}  // namespace torchamp::train
