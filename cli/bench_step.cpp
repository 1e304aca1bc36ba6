#include "cli/bench_step.h"

#include "torchamp/amp/autocast.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/clip_grad_norm.h"
#include "torchamp/optim/sgd.h"
#include "torchamp/train/memory_layout.h"

namespace torchamp::cli {
namespace {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const std::string& name, const std::vector<torch::Tensor>& parameters) {
  if (name == "sgd") {
    return std::make_unique<optim::SGD>(parameters, torch::optim::SGDOptions(0.01).momentum(0.9));
  }
  return std::make_unique<optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-3));
}

}  // namespace

std::vector<HostBatch> make_batches(const StepSettings& settings, int count) {
  const models::InputSpec spec = models::make_model(settings.model)->input_spec();
  torch::manual_seed(settings.seed);
  std::vector<int64_t> shape = {settings.batch};
  shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
  const std::vector<int64_t> target_shape =
      spec.is_text ? shape : std::vector<int64_t>{settings.batch};
  std::vector<HostBatch> batches;
  for (int i = 0; i < count; ++i) {
    HostBatch batch;
    batch.input = spec.dtype == torch::kLong ? torch::randint(spec.num_classes, shape, torch::kLong)
                                             : torch::randn(shape);
    batch.target = torch::randint(spec.num_classes, target_shape, torch::kLong);
    batches.push_back(batch);
  }
  return batches;
}

StepRunner::StepRunner(const StepSettings& settings, train::Precision precision)
    : settings_(settings),
      precision_(precision),
      scaler_({.device = settings.device.type(), .enabled = precision == train::Precision::kFp16}),
      timer_(settings.device) {
  torch::manual_seed(settings.seed);
  model_ = models::make_model(settings.model);
  model_->to(settings.device);
  if (settings.channels_last) train::to_channels_last(*model_);
  model_->train();
  parameters_ = model_->parameters();
  optimizer_ = make_optimizer(settings.optimizer, parameters_);
}

HostBatch StepRunner::to_device(const HostBatch& batch) const {
  HostBatch moved = {batch.input.to(settings_.device), batch.target.to(settings_.device)};
  if (settings_.channels_last) {
    moved.input = moved.input.contiguous(torch::MemoryFormat::ChannelsLast);
  }
  return moved;
}

torch::Tensor StepRunner::forward_loss(const HostBatch& batch) {
  const amp::Autocast autocast(settings_.device, train::autocast_dtype(precision_),
                               {.enabled = precision_ != train::Precision::kFp32});
  const torch::Tensor logits = model_->forward(batch.input);
  return torch::cross_entropy_loss(logits.flatten(0, -2), batch.target.flatten());
}

StepResult StepRunner::step(const HostBatch& host_batch) {
  timer_.start();
  const HostBatch batch = to_device(host_batch);

  timer_.enter(train::Phase::kForward);
  const torch::Tensor loss = forward_loss(batch);

  timer_.enter(train::Phase::kBackward);
  scaler_.scale(loss).backward();

  timer_.enter(train::Phase::kOptimizer);
  if (settings_.clip > 0) {
    scaler_.unscale_(*optimizer_);
    optim::clip_grad_norm_(parameters_, settings_.clip);
  }
  const amp::StepOutcome outcome = scaler_.step(*optimizer_);
  scaler_.update();
  optimizer_->zero_grad();

  StepResult result;
  result.times = timer_.stop();
  result.loss = loss.item<double>();
  result.skipped = outcome.skipped();
  return result;
}

void StepRunner::prepare_optimizer(const HostBatch& host_batch) {
  const HostBatch one = {host_batch.input.narrow(0, 0, 1), host_batch.target.narrow(0, 0, 1)};
  forward_loss(to_device(one)).backward();
  auto& options = optimizer_->param_groups()[0].options();
  const double lr = options.get_lr();
  options.set_lr(0);
  optimizer_->step();  // without the scaler, which might skip it
  options.set_lr(lr);
  optimizer_->zero_grad();
}

}  // namespace torchamp::cli
