#include "torchamp/train/trainer.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "torchamp/base/error.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/checkpoint/checkpoint_manager.h"
#include "torchamp/optim/lr_schedule.h"
#include "torchamp/train/data/loader.h"
#include "train/toy.h"

namespace torchamp::train {
namespace {

using ::testing::HasSubstr;
constexpr float kInf = std::numeric_limits<float>::infinity();

TrainerConfig small_config() {
  TrainerConfig config;
  config.batch = 8;
  config.workers = 0;
  return config;
}

// The passes of a step are numbered from 0; those in `bad` return outputs times inf.
TrainerParts with_overflow_at(const toy::Net& net, DatasetPair pair, std::vector<int64_t> bad) {
  TrainerParts parts = toy::parts(net, std::move(pair));
  auto pass = std::make_shared<int64_t>(0);
  parts.forward = [module = net.ptr(), bad, pass](const torch::Tensor& input) {
    const bool is_bad = std::find(bad.begin(), bad.end(), (*pass)++) != bad.end();
    // inf enters before the batch norm, so that the running statistics overflow too.
    return module->forward(is_bad ? input * kInf : input);
  };
  return parts;
}

// Losses, norms and final weights; 16-bit weights change none of them, in windows of one batch and
// of several.
TEST(Trainer, MasterWeightsTrainToTheBitsOfFloat32Weights) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    for (const int64_t accumulate : {1, 3}) {
      std::vector<std::string> rows[2];
      std::vector<torch::Tensor> weights[2];
      for (const bool masters : {false, true}) {
        TrainerConfig config = small_config();
        config.precision = Precision::kBf16;
        config.master_weights = masters;
        config.optimizer = optimizer;
        config.accumulate = accumulate;
        config.clip = 0.5;
        config.epochs = 8;
        TrainerCallbacks callbacks;
        callbacks.on_step = [&](StepMetrics metrics) {
          metrics.examples_per_s = 0.0;
          rows[masters].push_back(to_csv(metrics));
        };
        const toy::Net net = toy::make_net(5);
        Trainer trainer(config, toy::parts(net, toy::data(44, 8)), callbacks);
        trainer.run();
        EXPECT_EQ(net->fc1->weight.scalar_type(), masters ? torch::kBFloat16 : torch::kFloat);
        EXPECT_EQ(net->bn->weight.scalar_type(), torch::kFloat);
        const base::StateDict state = trainer.state_dict();
        for (const auto& [name, value] : state.at("model_state_dict").to_dict().entries()) {
          EXPECT_NE(value.to_tensor().scalar_type(), torch::kBFloat16);
          weights[masters].push_back(value.to_tensor().clone());
        }
      }
      EXPECT_EQ(rows[0], rows[1]);
      ASSERT_EQ(weights[0].size(), weights[1].size());
      for (size_t i = 0; i < weights[0].size(); ++i) {
        EXPECT_TRUE(torch::equal(weights[0][i], weights[1][i])) << i;
      }
    }
  }
}

TEST(Trainer, MasterWeightsNeedAnOptimizerThatKeepsThem) {
  TrainerConfig config = small_config();
  config.precision = Precision::kBf16;
  config.master_weights = true;
  const toy::Net net = toy::make_net(5);
  TrainerParts parts = toy::parts(net, toy::data(8));
  parts.optimizer = std::make_shared<torch::optim::SGD>(net->parameters(), 0.1);
  EXPECT_THAT(toy::message_of<c10::Error>([&] { Trainer(config, parts); }),
              HasSubstr("an optimizer came that keeps no masters"));
  EXPECT_EQ(net->fc1->weight.scalar_type(), torch::kFloat);
}

TEST(Trainer, WindowWithAShortEndHasTheGradientOfOneBigBatch) {
  // 10 examples, batches of 3, windows of 2: 6 examples, then 3 + 1.
  torch::manual_seed(1);
  torch::nn::Linear model(toy::kFeatures, toy::kClasses);
  const torch::Tensor start = model->weight.detach().to(torch::kDouble).clone();
  torch::Tensor weight = start.clone().requires_grad_(true);
  torch::Tensor bias = model->bias.detach().to(torch::kDouble).clone().requires_grad_(true);

  TrainerConfig config = small_config();
  config.batch = 3;
  config.accumulate = 2;
  config.optimizer = OptimizerKind::kSgd;
  config.momentum = 0.0;
  config.lr = 0.5;
  config.seed = 7;
  TrainerParts parts;
  parts.module = model.ptr();
  parts.forward = [model](const torch::Tensor& input) mutable { return model->forward(input); };
  parts.data = toy::data(10);
  std::vector<double> losses;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics& metrics) { losses.push_back(metrics.loss); };
  const auto data = parts.data.train;
  Trainer(config, parts, callbacks).run();

  // The same in float64, each window as one batch.
  const std::vector<int64_t> order = epoch_order(10, 7, 0);
  std::vector<double> expected;
  for (const auto& [first, last] : {std::pair{0, 6}, std::pair{6, 10}}) {
    const Batch batch = data->collate({order.begin() + first, order.begin() + last});
    const torch::Tensor loss = torch::cross_entropy_loss(
        torch::linear(batch.input.to(torch::kDouble), weight, bias), batch.target);
    const auto gradients = torch::autograd::grad({loss}, {weight, bias});
    expected.push_back(loss.item<double>());
    weight = (weight - 0.5 * gradients[0]).detach().requires_grad_(true);
    bias = (bias - 0.5 * gradients[1]).detach().requires_grad_(true);
  }
  // Values of about 1 pass through some 30 roundings a window (8 products and sums, the softmax of
  // 4, the sum over 6 examples, the update): 2 * 30 * 2^-24.
  constexpr double kBound = 60.0 / (1 << 24);
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_NEAR(losses[0], expected[0], kBound);
  EXPECT_NEAR(losses[1], expected[1], kBound);
  EXPECT_LE((model->weight.to(torch::kDouble) - weight).abs().max().item<double>(), kBound);
  EXPECT_LE((model->bias.to(torch::kDouble) - bias).abs().max().item<double>(), kBound);
  EXPECT_GT((start - weight).abs().max().item<double>(), 1e-3);  // it moved at all
}

TEST(Trainer, SkippedStepLeavesWeightsBuffersScheduleAndMeansAlone) {
  const toy::Net net = toy::make_net(3);
  TrainerConfig config = small_config();
  config.scaler = ScalerUse::kOn;
  config.optimizer = OptimizerKind::kSgd;
  config.lr = 1.0;
  config.warmup_steps = 4;
  config.init_scale = 1024.0;
  std::vector<StepMetrics> steps;
  std::vector<torch::Tensor> before;
  bool is_unchanged = true;
  const auto state = [&] {
    std::vector<torch::Tensor> all = net->parameters();
    for (const torch::Tensor& buffer : net->buffers()) all.push_back(buffer);
    for (torch::Tensor& tensor : all) tensor = tensor.detach().clone();
    return all;
  };
  before = state();
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics& metrics) {
    steps.push_back(metrics);
    if (metrics.step > 2) return;  // the first two overflow
    const std::vector<torch::Tensor> now = state();
    for (size_t i = 0; i < now.size(); ++i) is_unchanged &= torch::equal(now[i], before[i]);
  };
  std::optional<EpochMetrics> epoch;
  callbacks.on_epoch = [&](const EpochMetrics& metrics) { epoch = metrics; };
  Trainer(config, with_overflow_at(net, toy::data(32, 8), {0, 1}), callbacks).run();

  ASSERT_EQ(steps.size(), 4U);
  EXPECT_TRUE(is_unchanged);
  EXPECT_TRUE(steps[0].skipped && steps[1].skipped);
  EXPECT_FALSE(steps[2].skipped || steps[3].skipped);
  // The schedule waits: a quarter of the rate until a step was applied, then a half.
  EXPECT_EQ(steps[0].lr, 0.25);
  EXPECT_EQ(steps[1].lr, 0.25);
  EXPECT_EQ(steps[2].lr, 0.25);
  EXPECT_EQ(steps[3].lr, 0.5);
  EXPECT_EQ(steps[0].scale, 1024.0);
  EXPECT_EQ(steps[1].scale, 512.0);
  EXPECT_EQ(steps[2].scale, 256.0);
  ASSERT_TRUE(epoch);
  EXPECT_EQ(epoch->skipped_steps, 2);
  EXPECT_DOUBLE_EQ(epoch->train_loss, (steps[2].loss + steps[3].loss) / 2);
  EXPECT_DOUBLE_EQ(epoch->grad_norm, (steps[2].grad_norm + steps[3].grad_norm) / 2);
  EXPECT_TRUE(std::isfinite(epoch->val_loss));
}

// Two weights whose gradient is (3, 4) whatever the data.
struct ThreeFour : torch::nn::Module {
  torch::Tensor weights = register_parameter("weights", torch::zeros({2}));
};

TEST(Case5, ClipsTheGradientsOfTheUnscaledLoss) {
  const auto model = std::make_shared<ThreeFour>();
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  config.optimizer = OptimizerKind::kSgd;
  config.momentum = 0.0;
  config.lr = 1.0;
  config.clip = 1.0;
  config.init_scale = 1024.0;
  TrainerParts parts;
  parts.module = model;
  parts.forward = [model](const torch::Tensor&) { return model->weights * 1.0; };
  parts.loss = [](const torch::Tensor& output, const torch::Tensor&) {
    return (output * torch::tensor({3.0F, 4.0F})).sum();
  };
  parts.data = toy::data(8);
  double norm = 0.0;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics& metrics) { norm = metrics.grad_norm; };
  Trainer(config, parts, callbacks).run();
  EXPECT_EQ(norm, 5.0);
  // Clipping divides by the norm plus 1e-6.
  EXPECT_TRUE(torch::allclose(model->weights, torch::tensor({-0.6F, -0.8F}), 0, 1e-6));
}

TEST(Trainer, LogsTheUnscaledLoss) {
  const toy::Net net = toy::make_net(3);
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  TrainerParts parts = toy::parts(net, toy::data(8));
  parts.loss = [](const torch::Tensor& output, const torch::Tensor&) {
    return output.to(torch::kFloat).sum() * 0.0 + 1.5;
  };
  TrainerCallbacks callbacks;
  double loss = 0.0;
  double scale = 0.0;
  callbacks.on_step = [&](const StepMetrics& metrics) {
    loss = metrics.loss;
    scale = metrics.scale;
  };
  Trainer(config, parts, callbacks).run();
  EXPECT_EQ(loss, 1.5);
  EXPECT_EQ(scale, 65536.0);
}

TEST(Trainer, ScalesInFp16AloneAndWarnsOfFp16Without) {
  for (const Precision precision : {Precision::kFp32, Precision::kBf16, Precision::kFp16}) {
    TrainerConfig config = small_config();
    config.precision = precision;
    EXPECT_EQ(config.uses_scaler(), precision == Precision::kFp16);
  }
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  config.scaler = ScalerUse::kOff;
  std::string message;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { message += text; };
  Trainer(config, toy::parts(toy::make_net(1), toy::data(8)), callbacks).run();
  EXPECT_THAT(message, HasSubstr("without loss scaling"));
}

TEST(Trainer, NanLossEndsTheRunAndLeavesTheGoodCheckpoint) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.epochs = 2;
  config.checkpoint = folder / "last.pt";
  const toy::Net net = toy::make_net(3);
  std::vector<torch::Tensor> weights;
  std::vector<torch::Tensor> good;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics& metrics) {
    if (metrics.step == 5) weights = {net->fc1->weight.detach().clone()};
  };
  callbacks.on_epoch = [&](const EpochMetrics&) { good = {net->fc1->weight.detach().clone()}; };
  Trainer trainer(config, with_overflow_at(net, toy::data(32), {5}), callbacks);
  const std::string text = toy::message_of<base::DivergedError>([&] { trainer.run(); });
  EXPECT_THAT(text, HasSubstr("Step 6 (epoch 2) has loss nan"));
  EXPECT_THAT(text, HasSubstr("Try a lower --lr"));
  const base::StateDict kept = checkpoint::load(config.checkpoint);
  EXPECT_EQ(kept.at("epoch").to_int(), 1);
  EXPECT_TRUE(
      torch::equal(kept.at("model_state_dict").to_dict().at("fc1.weight").to_tensor(), good.at(0)));
  EXPECT_TRUE(torch::equal(net->fc1->weight, weights.at(0)));  // the step was not taken
}

TEST(Trainer, RunOfSkippedStepsEndsTheRun) {
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  config.max_skipped_in_a_row = 3;
  Trainer trainer(config, with_overflow_at(toy::make_net(3), toy::data(64), {1, 2, 3, 4}));
  const std::string text = toy::message_of<base::DivergedError>([&] { trainer.run(); });
  EXPECT_THAT(text, HasSubstr("3 optimizer steps in a row were skipped"));
  EXPECT_THAT(text, HasSubstr("(step 4, epoch 1)"));
  EXPECT_THAT(text, HasSubstr("--precision bf16"));
}

TEST(Trainer, SaysOnceThatTheScaleIsAtItsFloor) {
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  config.init_scale = 0x1p-12;  // two halvings above the floor, 2^-14
  std::vector<std::string> messages;
  std::vector<int64_t> steps;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { messages.push_back(text); };
  callbacks.on_step = [&](const StepMetrics& metrics) {
    if (!messages.empty()) steps.push_back(metrics.step);
  };
  Trainer(config, with_overflow_at(toy::make_net(3), toy::data(64), {1, 2, 3, 4}), callbacks).run();
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(messages[0], HasSubstr("The loss scale is at its floor, 6.10352e-05, and gradients "
                                     "are still inf or NaN (2 iterations in a row)"));
  EXPECT_EQ(steps.front(), 3);
}

TEST(Trainer, SaysThatBf16NeedsNoScaler) {
  for (const ScalerUse use : {ScalerUse::kAuto, ScalerUse::kOn}) {
    TrainerConfig config = small_config();
    config.precision = Precision::kBf16;
    config.scaler = use;
    std::string message;
    TrainerCallbacks callbacks;
    callbacks.on_message = [&](const std::string& text) { message += text; };
    Trainer(config, toy::parts(toy::make_net(1), toy::data(8)), callbacks).run();
    EXPECT_EQ(message.find("bf16 has float32's range") != std::string::npos, use == ScalerUse::kOn);
  }
}

TEST(Trainer, WeightsThatAreNotFiniteReplaceNoCheckpoint) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.checkpoint = folder / "last.pt";
  const toy::Net net = toy::make_net(3);
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochMetrics&) {
    const torch::NoGradGuard no_grad;
    net->fc2->bias.fill_(kInf);
  };
  Trainer trainer(config, toy::parts(net, toy::data(8)), callbacks);
  EXPECT_THAT(toy::message_of<base::DivergedError>([&] { trainer.run(); }),
              HasSubstr("'fc2.bias' holds values that are not finite"));
  EXPECT_FALSE(std::filesystem::exists(config.checkpoint));
}

TEST(Trainer, StopBeforeTheFirstStepReplacesNoCheckpoint) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.checkpoint = folder / "last.pt";
  TrainerCallbacks callbacks;
  callbacks.stop_signal = [] { return SIGINT; };
  const auto run = [&] {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(8)), callbacks);
    return toy::message_of<base::Interrupted>([&] { trainer.run(); });
  };
  EXPECT_THAT(run(), HasSubstr("--resume goes on from it"));  // no file yet: one is written
  std::ofstream(config.checkpoint) << "an earlier run's";
  EXPECT_THAT(run(), HasSubstr("no step was taken"));
  EXPECT_EQ(read_file(config.checkpoint), "an earlier run's");
}

TEST(Trainer, ValidationChangesNothingOfTheTraining) {
  std::vector<torch::Tensor> weights;
  for (const int64_t num_validation : {0, 8}) {
    const toy::Net net = toy::make_net(5);
    TrainerConfig config = small_config();
    config.epochs = 2;
    Trainer(config, toy::parts(net, toy::data(24, num_validation))).run();
    EXPECT_TRUE(net->is_training());
    weights.push_back(net->fc1->weight.detach().clone());
  }
  EXPECT_TRUE(torch::equal(weights[0], weights[1]));
}

TEST(Trainer, StepsEndTheRunInTheMiddleOfAnEpoch) {
  TrainerConfig config = small_config();
  config.steps = 6;
  std::vector<EpochMetrics> epochs;
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochMetrics& metrics) { epochs.push_back(metrics); };
  Trainer trainer(config, toy::parts(toy::make_net(5), toy::data(32)), callbacks);
  const RunSummary summary = trainer.run();
  EXPECT_EQ(trainer.steps_per_epoch(), 4);
  EXPECT_EQ(summary.steps, 6);
  EXPECT_EQ(summary.epochs, 1);
  ASSERT_EQ(epochs.size(), 2U);
  EXPECT_TRUE(epochs[0].is_complete);
  EXPECT_FALSE(epochs[1].is_complete);
}

TEST(Trainer, CheckpointHasTheKeysThatPythonUsersKnow) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.precision = Precision::kFp16;
  config.epochs = 2;
  config.checkpoint = folder / "last.pt";
  config.metadata.set("model", "toy");
  std::vector<double> losses;
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochMetrics& metrics) { losses.push_back(metrics.train_loss); };
  Trainer(config, toy::parts(toy::make_net(5), toy::data(32)), callbacks).run();
  const base::StateDict saved = checkpoint::load(config.checkpoint);
  EXPECT_EQ(saved.at("epoch").to_int(), 2);
  EXPECT_EQ(saved.at("loss").to_double(), losses.at(1));
  EXPECT_TRUE(saved.at("model_state_dict").to_dict().contains("bn.running_mean"));
  EXPECT_TRUE(saved.at("optimizer_state_dict").to_dict().contains("param_groups"));
  EXPECT_EQ(saved.at("scaler_state_dict").to_dict().at("scale").to_double(), 65536.0);
  EXPECT_EQ(saved.at("config").to_dict().at("model").to_string(), "toy");
}

// Every file that a run of two epochs writes, by name, without the identity that no other run has.
std::map<std::string, std::string> files_of_run(const TemporaryFolder& folder, bool in_background) {
  TrainerConfig config = small_config();
  config.epochs = 2;
  config.checkpoint = folder / "last.pt";
  config.checkpoint_every_steps = 1;
  config.keep_last = 20;
  config.checkpoint_in_background = in_background;
  Trainer(config, toy::parts(toy::make_net(5), toy::data(32))).run();
  std::map<std::string, std::string> files;
  const TemporaryFolder copies;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    const std::string name = entry.path().filename().string();
    base::StateDict state = checkpoint::load(entry.path());
    EXPECT_TRUE(state.erase("checkpoint_manager"));
    checkpoint::save(copies / name, state);
    files[name] = read_file(copies / name);
  }
  return files;
}

TEST(TrainerCheckpoints, TrainingOnWhileAFileIsWrittenChangesNoByteOfIt) {
  const TemporaryFolder in_background;
  const TemporaryFolder at_once;
  const auto files = files_of_run(in_background, true);
  EXPECT_EQ(files.size(), 9U);  // eight steps, and the last again
  EXPECT_EQ(files, files_of_run(at_once, false));
}

TEST(TrainerCheckpoints, GoOnFromTheMiddleOfAnEpoch) {
  const TemporaryFolder folder;
  files_of_run(folder, true);
  TrainerConfig config = small_config();
  config.epochs = 2;
  const toy::Net net = toy::make_net(99);
  Trainer trainer(config, toy::parts(net, toy::data(32)));
  trainer.load_state_dict(checkpoint::load(checkpoint::step_path(folder / "last.pt", 3)));
  EXPECT_EQ(trainer.run().steps, 8);
  const base::StateDict last = checkpoint::load(folder / "last.pt");
  EXPECT_TRUE(torch::equal(last.at("model_state_dict").to_dict().at("fc1.weight").to_tensor(),
                           net->fc1->weight));
}

TEST(TrainerCheckpoints, TheBestEpochStaysThroughAResume) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.checkpoint = folder / "last.pt";
  config.keep_best = true;
  config.lr = 0.2;  // the loss goes up and down
  std::vector<double> losses;
  TrainerCallbacks callbacks;
  callbacks.on_epoch = [&](const EpochMetrics& metrics) { losses.push_back(metrics.val_loss); };
  for (const int64_t epochs : {2, 3, 5, 7, 8}) {
    config.epochs = epochs;
    Trainer trainer(config, toy::parts(toy::make_net(5), toy::data(32, 16)), callbacks);
    if (epochs > 2) trainer.load_state_dict(checkpoint::load(config.checkpoint));
    trainer.run();
    ASSERT_EQ(losses.size(), static_cast<size_t>(epochs));
    const auto best = std::min_element(losses.begin(), losses.end()) - losses.begin();
    const base::StateDict kept = checkpoint::load(checkpoint::best_path(config.checkpoint));
    EXPECT_EQ(kept.at("epoch").to_int(), best + 1);
    EXPECT_EQ(kept.at("checkpoint_manager").to_dict().at("best_metric").to_double(),
              losses.at(static_cast<size_t>(best)));
  }
  EXPECT_GT(losses.back(), *std::min_element(losses.begin(), losses.end()));
}

TEST(TrainerCheckpoints, TheBestOneNeedsValidationData) {
  TrainerConfig config = small_config();
  config.keep_best = true;
  EXPECT_THAT(toy::message_of<base::UsageError>(
                  [&] { Trainer(config, toy::parts(toy::make_net(5), toy::data(8))); }),
              HasSubstr("keep-best is on and there are no validation data"));
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(TrainerCheckpoints, AveragesThatAreNotFiniteReplaceNoFile) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.checkpoint = folder / "last.pt";
  config.ema_decay = 0.75;
  base::StateDict state;  // shares its tensors with the trainer
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics& metrics) {
    if (metrics.step != 1) return;
    state.at("ema_state_dict").to_dict().at("module.fc2.bias").to_tensor().fill_(kNaN);
  };
  Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(32)), callbacks);
  state = trainer.state_dict();
  EXPECT_THAT(toy::message_of<base::DivergedError>([&] { trainer.run(); }),
              HasSubstr("'module.fc2.bias' holds values that are not finite"));
  EXPECT_FALSE(std::filesystem::exists(config.checkpoint));
}

TEST(TrainerCheckpoints, AFailedWriteIsToldThoughAnotherErrorEndsTheRun) {
  const TemporaryFolder folder;
  TrainerConfig config = small_config();
  config.epochs = 2;
  config.checkpoint = folder / "absent/last.pt";
  std::string message;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { message += text; };
  Trainer trainer(config, with_overflow_at(toy::make_net(3), toy::data(32), {5}), callbacks);
  EXPECT_THAT(toy::message_of<base::DivergedError>([&] { trainer.run(); }), HasSubstr("Step 6"));
  EXPECT_THAT(message, HasSubstr("absent/last.pt' was not written"));
}

TEST(Trainer, FullDiskWhileSavingIsACheckpointError) {
  TrainerConfig config = small_config();
  config.checkpoint = "/dev/full/last.pt";  // no folder
  Trainer trainer(config, toy::parts(toy::make_net(5), toy::data(8)));
  EXPECT_THROW(trainer.run(), base::CheckpointError);
}

}  // namespace
}  // namespace torchamp::train
