#include "torchamp/train/evaluate.h"

#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include "torchamp/amp/autocast.h"
#include "torchamp/multi_tensor/device_read.h"
#include "torchamp/train/data/loader.h"

namespace torchamp::train {
namespace {

class EvalMode {
 public:
  explicit EvalMode(torch::nn::Module& module)
      : module_(module), was_training_(module.is_training()) {
    module_.eval();
  }
  ~EvalMode() { module_.train(was_training_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  torch::nn::Module& module_;
  bool was_training_;
};

}  // namespace

std::optional<Evaluation> evaluate(torch::nn::Module& module, const Forward& forward,
                                   const Loss& loss, const std::shared_ptr<const Dataset>& dataset,
                                   const EvaluateOptions& options) {
  const EvalMode eval_mode(module);
  const at::NoGradGuard no_grad;
  BatchStreamOptions stream_options;
  stream_options.batch_size = options.batch;
  stream_options.num_workers = options.workers;
  BatchStream stream(dataset, stream_options);

  const auto real = at::TensorOptions().dtype(at::kDouble).device(options.placement.device);
  at::Tensor loss_sum = at::zeros({}, real);
  at::Tensor num_right = at::zeros({}, real);
  int64_t num_targets = 0;
  bool has_classes = true;
  while (std::optional<Batch> next = stream.next()) {
    if (options.stop && options.stop()) return std::nullopt;
    const Batch batch = place(*next, options.placement);
    at::Tensor output;
    at::Tensor mean_loss;
    {
      std::optional<amp::Autocast> region;
      if (options.dtype) region.emplace(options.placement.device, *options.dtype);
      output = forward(batch.input);
      mean_loss = loss(output, batch.target);
    }
    const int64_t count = batch.target.numel();
    num_targets += count;
    loss_sum += mean_loss.to(at::kDouble) * static_cast<double>(count);
    has_classes = !batch.target.is_floating_point() && output.dim() == batch.target.dim() + 1;
    if (has_classes) num_right += output.argmax(-1).eq(batch.target).sum();
  }
  const std::vector<double> sums = multi_tensor::DeviceRead({loss_sum, num_right}).get();
  const double count = static_cast<double>(num_targets);
  Evaluation result;
  result.loss = sums[0] / count;
  result.accuracy = has_classes ? sums[1] / count : std::numeric_limits<double>::quiet_NaN();
  result.num_targets = num_targets;
  return result;
}

}  // namespace torchamp::train
