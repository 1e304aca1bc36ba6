#include "torchamp/amp/buffer_guard.h"

#include <algorithm>
#include <utility>

#include <ATen/core/grad_mode.h>

namespace torchamp::amp {

BufferSnapshot::BufferSnapshot(std::vector<at::Tensor> buffers) : buffers_(std::move(buffers)) {
  const at::NoGradGuard no_grad;
  buffers_.erase(std::remove_if(buffers_.begin(), buffers_.end(),
                                [](const at::Tensor& buffer) { return !buffer.defined(); }),
                 buffers_.end());
  values_.reserve(buffers_.size());
  for (const auto& buffer : buffers_) {
    values_.push_back(buffer.detach().clone());
  }
}

void BufferSnapshot::take() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    values_[i].copy_(buffers_[i], /*non_blocking=*/true);
  }
}

void BufferSnapshot::restore() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    buffers_[i].copy_(values_[i], /*non_blocking=*/true);
  }
}

StepOutcome BufferGuard::follow(StepOutcome outcome) {
  if (outcome.skipped()) {
    snapshot_.restore();
  }
  return outcome;
}

}  // namespace torchamp::amp
