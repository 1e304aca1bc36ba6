#include "torchamp/train/train_step.h"

#include <cmath>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/amp/buffer_guard.h"
#include "torchamp/multi_tensor/device_read.h"
#include "torchamp/optim/clip_grad_norm.h"

namespace torchamp::train {
namespace {

// Adds the gradients of one batch; returns its part of the window's loss.
at::Tensor accumulate_batch(const StepParts& parts, const StepOptions& options,
                            const Window& window) {
  const Batch batch = place(window.next(), options.placement);
  at::Tensor loss;
  {
    std::optional<amp::Autocast> region;
    if (options.dtype) region.emplace(options.placement.device, *options.dtype);
    loss = parts.loss(parts.forward(batch.input), batch.target);
  }
  const int64_t num_examples = batch.input.size(0);
  if (num_examples != window.num_examples) {
    loss = loss * (static_cast<double>(num_examples) / static_cast<double>(window.num_examples));
  }
  // A disabled scaler warns of fp16 on stderr, but the Trainer has said so already.
  (parts.scaler.is_enabled() ? parts.scaler.scale(loss) : loss).backward();
  return loss.detach().to(at::kFloat);
}

at::Tensor clip_or_measure(torch::optim::Optimizer& optimizer, std::optional<double> clip) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return clip ? optim::clip_grad_norm_(parameters, *clip) : optim::grad_norm(parameters);
}

}  // namespace

StepResult train_step(const StepParts& parts, const StepOptions& options, const Window& window) {
  const bool is_scaled = parts.scaler.is_enabled();
  std::optional<amp::BufferGuard> buffers;
  if (is_scaled) buffers.emplace(parts.module.buffers());

  parts.optimizer.zero_grad();
  at::Tensor loss = accumulate_batch(parts, options, window);
  for (int64_t i = 1; i < window.num_batches; ++i) {
    loss = loss + accumulate_batch(parts, options, window);
  }

  parts.scaler.unscale_(parts.optimizer);
  const at::Tensor norm = clip_or_measure(parts.optimizer, options.clip);
  // Scaling 1 gives the scale as a tensor, without a wait for the device.
  const at::Tensor one = at::ones({}, loss.options());
  multi_tensor::DeviceRead numbers({loss, norm, is_scaled ? parts.scaler.scale(one) : one});

  StepResult result;
  const auto read = [&] {
    const std::vector<double> values = numbers.get();
    result.loss = values[0];
    result.grad_norm = values[1];
    result.scale = values[2];
  };
  if (!is_scaled) {
    read();
    result.diverged = !std::isfinite(result.loss) || !std::isfinite(result.grad_norm);
    if (result.diverged) return result;
  }
  const amp::StepOutcome outcome = parts.scaler.step(parts.optimizer);
  parts.scaler.update();
  if (is_scaled) {
    result.skipped = buffers->follow(outcome).skipped();
    read();
    if (result.skipped) result.reason = amp::to_string(outcome.reason());
  }
  return result;
}

}  // namespace torchamp::train
