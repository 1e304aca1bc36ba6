#pragma once
// One training step of the benchmark: a model in one precision, its optimizer, its scaler.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "models/model.h"
#include "torchamp/amp/grad_scaler.h"
#include "torchamp/train/machine.h"
#include "torchamp/train/meter.h"

namespace torchamp::cli {

/// What the step is, whatever its precision.
struct StepSettings {
  std::string model;
  int64_t batch = 0;
  c10::Device device = c10::kCPU;
  bool channels_last = false;
  std::string optimizer;  // "adamw" or "sgd"
  double clip = 0;        // 0: no clipping
  uint64_t seed = 0;
};

struct HostBatch {
  torch::Tensor input, target;
};

/// `count` batches of random data that fit the model; the same for the same seed.
std::vector<HostBatch> make_batches(const StepSettings& settings, int count);

struct StepResult {
  train::StepTimes times;
  double loss = 0;
  bool skipped = false;  // the scaler saw an inf or a NaN
};

class StepRunner {
 public:
  /// Fresh weights from `settings.seed`: runners of all precisions begin with the same.
  StepRunner(const StepSettings& settings, train::Precision precision);

  StepResult step(const HostBatch& batch);

  /// Runs one example with a learning rate of zero, so that the optimizer's state exists before a
  /// memory measurement. Weights stay as they are; the optimizer's moments do not.
  void prepare_optimizer(const HostBatch& batch);

 private:
  torch::Tensor forward_loss(const HostBatch& batch);
  HostBatch to_device(const HostBatch& batch) const;

  StepSettings settings_;
  train::Precision precision_;
  std::shared_ptr<models::Model> model_;
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  amp::GradScaler scaler_;
  train::StepTimer timer_;
};

}  // namespace torchamp::cli
