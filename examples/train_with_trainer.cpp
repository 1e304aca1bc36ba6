// The whole loop as a value: a data set and a module of one's own, trained in fp16 by the Trainer,
// stopped after some steps and resumed from the checkpoint.

#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include <torch/torch.h>

#include <torchamp/checkpoint/checkpoint.h>
#include <torchamp/train/trainer.h>

namespace {

namespace train = torchamp::train;

// 16 numbers; the class is the place of the largest of the first four.
class LargestOfFour : public train::Dataset {
 public:
  LargestOfFour(int64_t size, uint64_t seed) {
    torch::manual_seed(seed);
    input_ = torch::randn({size, 16});
    target_ = input_.slice(1, 0, 4).argmax(1);
    info_.name = "largest-of-four";
    info_.input_shape = {16};
    info_.num_classes = 4;
  }
  int64_t size() const override { return input_.size(0); }
  const train::DatasetInfo& info() const override { return info_; }
  train::Batch collate(const std::vector<int64_t>& indices) const override {
    const torch::Tensor rows = torch::tensor(indices, torch::kLong);
    return {input_.index_select(0, rows), target_.index_select(0, rows)};
  }

 private:
  torch::Tensor input_;
  torch::Tensor target_;
  train::DatasetInfo info_;
};

train::Trainer make_trainer(const train::TrainerConfig& config, double& accuracy) {
  train::TrainerParts parts;
  parts.data.train = std::make_shared<LargestOfFour>(2048, 1);
  parts.data.validation = std::make_shared<LargestOfFour>(512, 2);
  torch::manual_seed(0);
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(),
                              torch::nn::Linear(64, 4));
  parts.module = model.ptr();
  parts.forward = [module = model.ptr()](const torch::Tensor& input) {
    return module->forward(input);
  };
  train::TrainerCallbacks callbacks;
  callbacks.on_epoch = [&accuracy](const train::EpochMetrics& epoch) {
    accuracy = epoch.val_accuracy;
    std::printf("epoch %d: loss %.3f, accuracy %.1f%%, scale %.0f\n", static_cast<int>(epoch.epoch),
                epoch.train_loss, 100.0 * epoch.val_accuracy, epoch.scale);
  };
  return train::Trainer(config, parts, callbacks);
}

}  // namespace

int main() {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / "torchamp_example_trainer.pt";
  train::TrainerConfig config;
  config.precision = train::Precision::kFp16;  // fp16 scales the loss; bf16 would not
  config.lr = 5e-3;
  config.clip = 1.0;
  config.epochs = 6;
  config.checkpoint = file;

  double accuracy = 0.0;
  train::TrainerConfig first = config;
  first.steps = 40;  // in the middle of the second epoch
  make_trainer(first, accuracy).run();

  train::Trainer trainer = make_trainer(config, accuracy);
  trainer.load_state_dict(torchamp::checkpoint::load(file));
  const train::RunSummary summary = trainer.run();
  std::printf("%d steps, %d skipped\n", static_cast<int>(summary.steps),
              static_cast<int>(summary.skipped_steps));
  std::filesystem::remove(file);
  return accuracy > 0.8 ? 0 : 1;
}
