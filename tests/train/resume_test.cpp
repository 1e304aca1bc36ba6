// A run that was stopped and resumed computes the bits of one that never stopped.

#include <algorithm>
#include <csignal>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <torch/torch.h>

#include "checkpoint/checkpoint_support.h"
#include "torchamp/base/error.h"
#include "torchamp/checkpoint/checkpoint.h"
#include "torchamp/kernels/cpu/table.h"
#include "torchamp/ops/choice_table.h"
#include "torchamp/ops/choices.h"
#include "torchamp/optim/adamw.h"
#include "torchamp/optim/low_precision.h"
#include "torchamp/train/trainer.h"
#include "train/toy.h"

namespace torchamp::train {
namespace {

using ::testing::HasSubstr;

// 30 examples, batches of 4, windows of 2: 4 steps an epoch, the last of 4 + 2 examples.
TrainerConfig config_for(Precision precision, OptimizerKind optimizer) {
  TrainerConfig config;
  config.precision = precision;
  config.optimizer = optimizer;
  config.batch = 4;
  config.accumulate = 2;
  config.epochs = 3;
  config.clip = 1.0;
  config.warmup_steps = 2;
  config.schedule = ScheduleKind::kCosine;
  config.growth_interval = 3;
  config.init_scale = 0x1p30;  // fp16 overflows at first, so that skipped steps are resumed too
  config.seed = 11;
  return config;
}

struct Record {
  std::vector<std::string> steps;
  std::vector<std::string> epochs;
  std::vector<torch::Tensor> tensors;

  bool operator==(const Record& other) const {
    if (steps != other.steps || epochs != other.epochs || tensors.size() != other.tensors.size()) {
      return false;
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!torch::equal(tensors[i], other.tensors[i])) return false;
    }
    return true;
  }
};

// Appends what `trainer` reports, times left out; stops after step `stop_after`, or with -1 in the
// first validation.
TrainerCallbacks recording(Record& record, int64_t stop_after) {
  TrainerCallbacks callbacks;
  auto step = std::make_shared<int64_t>(0);
  callbacks.on_step = [&record, step](StepMetrics metrics) {
    *step = metrics.step;
    metrics.examples_per_s = 0.0;
    record.steps.push_back(to_csv(metrics) + "," + shortest(metrics.mean_loss));
  };
  callbacks.on_epoch = [&record](EpochMetrics metrics) {
    metrics.examples_per_s = 0.0;
    record.epochs.push_back(to_json(metrics));
  };
  auto asked = std::make_shared<int>(0);
  callbacks.stop_signal = [step, asked, stop_after] {
    // After the first epoch's fourth step: once after the step, then in validation.
    if (stop_after == -1) return *step == 4 && ++*asked > 1 ? SIGTERM : 0;
    return stop_after > 0 && *step >= stop_after ? SIGTERM : 0;
  };
  return callbacks;
}

void keep_tensors(Record& record, const Trainer& trainer) {
  const base::StateDict state = trainer.state_dict();
  for (const auto& [key, value] : state.at("model_state_dict").to_dict().entries()) {
    record.tensors.push_back(value.to_tensor().clone());
  }
  if (const base::Value* ema = state.find("ema_state_dict")) {
    for (const auto& entry : ema->to_dict().entries()) {
      record.tensors.push_back(entry.value.to_tensor().clone());
    }
  }
  for (const auto& [index, entry] :
       state.at("optimizer_state_dict").to_dict().at("state").to_dict().entries()) {
    for (const auto& [key, value] : entry.to_dict().entries()) {
      if (value.is<at::Tensor>()) record.tensors.push_back(value.to_tensor().clone());
    }
  }
}

// Precision, and whether the weights are 16-bit.
using Way = std::pair<Precision, bool>;

class Resume : public ::testing::TestWithParam<std::tuple<Way, OptimizerKind, int64_t>> {};

TEST_P(Resume, GivesTheBitsOfARunThatNeverStopped) {
  const auto [way, optimizer, stop_after] = GetParam();
  TrainerConfig config = config_for(way.first, optimizer);
  config.master_weights = way.second;

  Record straight;
  {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30, 6)), recording(straight, 0));
    trainer.run();
    keep_tensors(straight, trainer);
  }
  const TemporaryFolder folder;
  config.checkpoint = folder / "last.pt";
  Record resumed;
  {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30, 6)),
                    recording(resumed, stop_after));
    const std::string text = toy::message_of<base::Interrupted>([&] { trainer.run(); });
    EXPECT_THAT(text, HasSubstr("Stopped by SIGTERM after step " +
                                std::to_string(stop_after == -1 ? 4 : stop_after)));
  }
  {
    // Other weights, and another place in the random numbers.
    Trainer trainer(config, toy::parts(toy::make_net(99), toy::data(30, 6)), recording(resumed, 0));
    trainer.load_state_dict(checkpoint::load(config.checkpoint));
    trainer.run();
    keep_tensors(resumed, trainer);
  }
  EXPECT_EQ(straight.steps, resumed.steps);
  EXPECT_EQ(straight.epochs, resumed.epochs);
  EXPECT_TRUE(straight == resumed);
  EXPECT_EQ(straight.steps.size(), 12U);
}

INSTANTIATE_TEST_SUITE_P(
    AtSeveralPlaces, Resume,
    ::testing::Combine(::testing::Values(Way(Precision::kFp32, false), Way(Precision::kBf16, false),
                                         Way(Precision::kFp16, false), Way(Precision::kBf16, true),
                                         Way(Precision::kFp16, true)),
                       ::testing::Values(OptimizerKind::kAdamW, OptimizerKind::kSgd),
                       ::testing::Values(1, 4, 6, -1)),
    [](const auto& info) {
      const int64_t stop = std::get<2>(info.param);
      const Way way = std::get<0>(info.param);
      return std::string(format_precision(way.first)) + (way.second ? "_masters_" : "_") +
             std::string(to_string(std::get<1>(info.param))) +
             (stop == -1 ? "_in_validation" : "_after_step_" + std::to_string(stop));
    });

// How weights were kept does not show: exact values are in the checkpoint.
TEST(ResumeMasters, GoesOnWithAndWithoutThem) {
  TrainerConfig config = config_for(Precision::kBf16, OptimizerKind::kAdamW);
  const auto parts = [](uint64_t seed, bool has_masters) {
    toy::Net net = toy::make_net(seed);
    TrainerParts made = toy::parts(net, toy::data(30, 6));
    if (has_masters) {
      EXPECT_EQ(optim::to_low_precision(*net, torch::kBFloat16).size(), 2U);
    }
    made.optimizer = std::make_shared<optim::AdamW>(net->parameters());
    return made;
  };
  Record straight;
  Trainer plain(config, parts(3, false), recording(straight, 0));
  plain.run();
  keep_tensors(straight, plain);

  for (const bool starts_with : {false, true}) {
    for (const bool goes_on_with : {false, true}) {
      const TemporaryFolder folder;
      config.checkpoint = folder / "last.pt";
      Record resumed;
      {
        Trainer trainer(config, parts(3, starts_with), recording(resumed, 6));
        toy::message_of<base::Interrupted>([&] { trainer.run(); });
      }
      Trainer trainer(config, parts(99, goes_on_with), recording(resumed, 0));
      trainer.load_state_dict(checkpoint::load(config.checkpoint));
      trainer.run();
      keep_tensors(resumed, trainer);
      EXPECT_EQ(straight.steps, resumed.steps) << starts_with << goes_on_with;
      EXPECT_TRUE(straight == resumed) << starts_with << goes_on_with;
    }
  }
}

// A checkpoint after 2 of the 4 steps of the first epoch, or after the whole of it.
base::StateDict checkpoint_after(const TrainerConfig& config, int64_t steps) {
  TrainerConfig first = config;
  first.steps = steps;
  Trainer trainer(first, toy::parts(toy::make_net(3), toy::data(30)));
  trainer.run();
  return trainer.state_dict();
}

// Iteration, scale and reason of the skipped steps, from the checkpoint.
std::string skips(const base::StateDict& state) {
  std::string text;
  const auto& history = state.at("scaler_history").to_dict();
  for (const base::Value& skip : history.at("skips").to_items()) {
    const auto& items = skip.to_items();
    text += std::to_string(items.at(0).to_int()) + " " + shortest(items.at(1).to_double()) + " " +
            items.at(2).to_string() + "\n";
  }
  return text + std::to_string(history.at("iterations").to_int());
}

TEST(ResumeHistory, OfSkippedStepsGoesOnAndOlderFilesHaveNone) {
  const TrainerConfig config = config_for(Precision::kFp16, OptimizerKind::kSgd);
  Trainer straight(config, toy::parts(toy::make_net(3), toy::data(30)));
  const int64_t skipped = straight.run().skipped_steps;
  ASSERT_GT(skipped, 2);
  const std::string whole = skips(straight.state_dict());
  EXPECT_EQ(whole.substr(0, 13), "1 1073741824 ");  // 2^30 at the first step
  EXPECT_EQ(std::count(whole.begin(), whole.end(), '\n'), skipped);

  base::StateDict saved = checkpoint_after(config, 2);
  Trainer resumed(config, toy::parts(toy::make_net(9), toy::data(30)));
  resumed.load_state_dict(saved);
  resumed.run();
  EXPECT_EQ(skips(resumed.state_dict()), whole);

  saved.erase("scaler_history");
  Trainer from_old(config, toy::parts(toy::make_net(9), toy::data(30)));
  from_old.load_state_dict(saved);
  EXPECT_EQ(from_old.run().skipped_steps, skipped);
}

// A copy that later steps do not change.
base::Value cloned(const base::Value& value) {
  if (value.is<torch::Tensor>()) return value.to_tensor().clone();
  if (!value.is<base::StateDict>()) return value;
  base::StateDict copy;
  for (const auto& [key, item] : value.to_dict().entries()) copy.set(key, cloned(item));
  return copy;
}

using Path = std::vector<base::StateDict::Key>;

// `dict` with the entry at `path` replaced, or taken out.
base::StateDict changed(base::StateDict dict, const Path& path, std::optional<base::Value> value) {
  if (path.size() > 1) {
    dict.set(path[0], changed(dict.at(path[0]).to_dict(), Path(path.begin() + 1, path.end()),
                              std::move(value)));
  } else if (value) {
    dict.set(path[0], *value);
  } else {
    dict.erase(path[0]);
  }
  return dict;
}

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Damage {
  std::string part;
  Path path;
  std::optional<base::Value> value;
};

std::vector<Damage> damages() {
  const base::Value text = "text";
  return {
      {"model_state_dict", {"model_state_dict", "fc1.weight"}, torch::zeros({2, 2})},
      {"model_state_dict", {"model_state_dict", "bn.running_var"}, std::nullopt},
      {"model_state_dict", {"model_state_dict", "fc2.bias"}, torch::zeros({4}, torch::kLong)},
      {"model_state_dict", {"model_state_dict"}, std::nullopt},
      {"optimizer_state_dict", {"optimizer_state_dict", "state", int64_t{0}, "exp_avg"}, text},
      {"optimizer_state_dict", {"optimizer_state_dict", "state", int64_t{0}, "step"}, -1.0},
      {"optimizer_state_dict",
       {"optimizer_state_dict", "state", int64_t{0}, "exp_avg_sq"},
       torch::zeros({16, 8}, torch::kLong)},
      {"optimizer_state_dict", {"optimizer_state_dict", "state", int64_t{77}}, base::StateDict()},
      {"optimizer_state_dict", {"optimizer_state_dict", "param_groups"}, base::List()},
      {"optimizer_state_dict", {"optimizer_state_dict"}, std::nullopt},
      {"scaler_state_dict", {"scaler_state_dict", "scale"}, -1.0},
      {"scaler_state_dict", {"scaler_state_dict", "growth_interval"}, text},
      {"scaler_state_dict", {"scaler_state_dict"}, text},
      {"scaler_history", {"scaler_history", "skips"}, base::List{{1}}},
      {"lr_scheduler_state_dict", {"lr_scheduler_state_dict", "last_step"}, -1},
      {"rng_state", {"rng_state", "cpu"}, torch::full({5056}, 255, torch::kByte)},
      {"rng_state", {"rng_state", "cpu"}, torch::zeros({7})},
      {"ema_state_dict", {"ema_state_dict", "n_averaged"}, -1},
      {"ema_state_dict", {"ema_state_dict", "module.fc1.weight"}, torch::zeros({3})},
      {"train_state", {"train_state", "epoch"}, std::nullopt},
      {"train_state", {"train_state", "batch"}, 5},
      {"train_state", {"train_state", "step"}, INT64_MAX},
      {"train_state", {"train_state", "next_batch"}, 9},  // of 8
      {"train_state", {"train_state"}, text},
      {"epoch", {"epoch"}, text},
      {"epoch", {"epoch"}, -1},
      {"epoch", {"epoch"}, 7},  // train_state has another
      {"checkpoint_manager", {"checkpoint_manager"}, text},
      {"checkpoint_manager", {"checkpoint_manager", "run_id"}, 7},
      {"checkpoint_manager", {"checkpoint_manager", "best_metric"}, kNaN},
      {"checkpoint_manager", {"checkpoint_manager", "best_step"}, std::nullopt},
      {"ops_choices", {"ops_choices", "choices"}, text},
      // Numbers that no run is saved with.
      {"model_state_dict", {"model_state_dict", "fc1.bias"}, torch::full({16}, kInf)},
      {"model_state_dict", {"model_state_dict", "bn.running_mean"}, torch::full({16}, kNaN)},
      {"optimizer_state_dict",
       {"optimizer_state_dict", "state", int64_t{1}, "exp_avg"},
       torch::full({16}, kInf)},
      {"optimizer_state_dict",
       {"optimizer_state_dict", "state", int64_t{1}, "exp_avg_sq"},
       torch::full({16}, kNaN)},
      {"optimizer_state_dict",
       {"optimizer_state_dict", "state", int64_t{1}, "exp_avg_sq"},
       torch::full({16}, -1.0)},
      {"ema_state_dict", {"ema_state_dict", "module.fc1.bias"}, torch::full({16}, kNaN)},
      {"lr_scheduler_state_dict", {"lr_scheduler_state_dict", "base_lrs"}, base::List{{-0.001}}},
      {"lr_scheduler_state_dict", {"lr_scheduler_state_dict", "base_lrs"}, base::List{{kNaN}}},
  };
}

TrainerConfig config_with_every_part() {
  TrainerConfig config = config_for(Precision::kFp16, OptimizerKind::kAdamW);
  config.ema_decay = 0.75;
  config.init_scale = 1024;
  return config;
}

constexpr const char* kRunId = "0123456789abcdef0123456789abcdef";

// `state` as a file has it.
base::StateDict with_manager(base::StateDict state) {
  base::StateDict manager;
  manager.set("run_id", kRunId);
  manager.set("best_metric", 0.5);
  manager.set("best_step", 4);
  state.set("checkpoint_manager", manager);
  return state;
}

TEST(ResumeAllOrNothing, ADamagedEntryOfAnyPartLeavesEveryBitAsItWas) {
  const TrainerConfig config = config_with_every_part();
  const base::StateDict saved = with_manager(checkpoint_after(config, 6));
  const TemporaryFolder folder;
  TrainerConfig here = config;
  here.steps = 1;
  here.checkpoint = folder / "last.pt";
  Trainer trainer(here, toy::parts(toy::make_net(9), toy::data(30)));
  trainer.run();
  const base::StateDict before = cloned(trainer.state_dict()).to_dict();
  for (const Damage& damage : damages()) {
    const std::string text = toy::message_of<base::CheckpointError>(
        [&] { trainer.load_state_dict(changed(saved, damage.path, damage.value)); });
    EXPECT_THAT(text, HasSubstr("(1 difference), and nothing was changed: " + damage.part + ": "));
    EXPECT_TRUE(same(trainer.state_dict(), before)) << text;
  }
  trainer.load_state_dict(saved);
  EXPECT_FALSE(same(trainer.state_dict(), before));
}

TEST(ResumeAllOrNothing, ListsTheDifferencesOfAllPartsInAPageOfText) {
  const TrainerConfig config = config_with_every_part();
  base::StateDict damaged = with_manager(checkpoint_after(config, 6));
  const std::string long_name(100000, 'x');
  base::StateDict model = damaged.at("model_state_dict").to_dict();
  for (int i = 0; i < 1000; ++i) model.set(long_name + std::to_string(i), 1);
  damaged.set("model_state_dict", std::move(model));
  for (const Damage& damage : damages()) {
    if (damage.path.size() > 1 && damage.part != "scaler_history") {
      damaged = changed(damaged, damage.path, damage.value);
    }
  }
  Trainer trainer(config, toy::parts(toy::make_net(9), toy::data(30)));
  const std::string text =
      toy::message_of<base::CheckpointError>([&] { trainer.load_state_dict(damaged); });
  for (const char* part :
       {"model_state_dict: 1 missing ('bn.running_var'); 1000 unexpected (", ", and 980 more",
        "optimizer_state_dict: the state has 0 parameter groups, the optimizer 1",
        "scaler_state_dict: ", "lr_scheduler_state_dict: ", "rng_state: ", "ema_state_dict: ",
        "train_state: ", "ops_choices: "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_LT(text.size(), 10000U);
}

TEST(ResumeAllOrNothing, PartsThatStandAloneAreToldWithTheOthers) {
  const TrainerConfig config = config_with_every_part();
  base::StateDict damaged = with_manager(checkpoint_after(config, 6));
  damaged = changed(damaged, {"model_state_dict", "fc2.bias"}, std::nullopt);
  damaged = changed(damaged, {"train_state", "seed"}, "text");
  damaged = changed(damaged, {"epoch"}, -1);
  damaged = changed(damaged, {"lr_scheduler_state_dict", "last_step"}, -1);
  damaged = changed(damaged, {"checkpoint_manager", "run_id"}, "mine");
  const TemporaryFolder folder;
  TrainerConfig here = config;
  here.checkpoint = folder / "last.pt";
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text; };
  Trainer trainer(here, toy::parts(toy::make_net(9), toy::data(30)), callbacks);
  const std::string text =
      toy::message_of<base::CheckpointError>([&] { trainer.load_state_dict(damaged); });
  EXPECT_THAT(text, HasSubstr("(5 differences), and nothing was changed: "));
  for (const char* part :
       {"model_state_dict: 1 missing ('fc2.bias')", "seed is a str",
        "epoch: it is -1, 0 or more is expected", "lr_scheduler_state_dict: last_step is -1",
        "checkpoint_manager: 'run_id' is 'mine', 32 hexadecimal digits are expected"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_EQ(said, "");
}

TEST(ResumeAllOrNothing, TheIdentityOfTheRunIsTakenOverWithTheRestAlone) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  const base::StateDict saved = with_manager(checkpoint_after(config, 6));
  for (const bool is_good : {false, true}) {
    const TemporaryFolder folder;
    TrainerConfig here = config;
    here.checkpoint = folder / "last.pt";
    here.steps = 7;
    Trainer trainer(here, toy::parts(toy::make_net(9), toy::data(30)));
    if (is_good) {
      trainer.load_state_dict(saved);
    } else {
      const auto damaged = changed(saved, {"model_state_dict", "fc2.bias"}, std::nullopt);
      EXPECT_THROW(trainer.load_state_dict(damaged), base::CheckpointError);
    }
    trainer.run();
    const base::StateDict manager =
        checkpoint::load(here.checkpoint).at("checkpoint_manager").to_dict();
    EXPECT_EQ(manager.at("run_id").to_string() == kRunId, is_good);
    EXPECT_EQ(manager.contains("best_metric"), is_good);
  }
}

// They stay as a run left them: a mask, and what the square of a gradient beyond 1.8e19 gives.
TEST(ResumeAllOrNothing, InfinityInBuffersAndSecondMomentsIsARunsOwn) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  base::StateDict saved = checkpoint_after(config, 6);
  saved = changed(saved, {"model_state_dict", "bn.running_mean"}, torch::full({16}, -kInf));
  saved = changed(saved, {"optimizer_state_dict", "state", int64_t{1}, "exp_avg_sq"},
                  torch::full({16}, kInf));
  Trainer trainer(config, toy::parts(toy::make_net(9), toy::data(30)));
  trainer.load_state_dict(saved);
  EXPECT_TRUE(same(trainer.state_dict().at("optimizer_state_dict").to_dict(),
                   saved.at("optimizer_state_dict").to_dict()));
}

// What a Trainer of `config` says on loading `state`.
std::string said_on_loading(const base::StateDict& state, const TrainerConfig& config) {
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text + "\n"; };
  Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30)), callbacks);
  trainer.load_state_dict(state);
  return said;
}

TEST(ResumeSays, NothingWhereNothingDiffers) {
  const TrainerConfig config = config_with_every_part();
  EXPECT_EQ(said_on_loading(checkpoint_after(config, 6), config), "");
}

TEST(ResumeSays, ThatTheScalerStartsAnewWhereTheFileHasNone) {
  TrainerConfig fp16 = config_for(Precision::kFp16, OptimizerKind::kAdamW);
  for (const Precision precision : {Precision::kFp32, Precision::kBf16}) {
    const std::string said =
        said_on_loading(checkpoint_after(config_for(precision, OptimizerKind::kAdamW), 2), fp16);
    EXPECT_THAT(said, HasSubstr("no scaler state, as one written without loss scaling: the scaler "
                                "starts anew at scale 1073741824."));
    EXPECT_THAT(said, HasSubstr("Resumed in fp16; the checkpoint was written in "));
  }
}

TEST(ResumeSays, ThatAScalerStateIsNotUsed) {
  TrainerConfig fp16 = config_for(Precision::kFp16, OptimizerKind::kAdamW);
  fp16.init_scale = 1024;
  fp16.growth_interval = 100;
  EXPECT_THAT(said_on_loading(checkpoint_after(fp16, 2),
                              config_for(Precision::kBf16, OptimizerKind::kAdamW)),
              HasSubstr("The checkpoint's scaler state (scale 1024) is not used: this run does not "
                        "scale its loss."));
}

TEST(ResumeSays, ThatMomentsStartAnew) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  const base::StateDict saved = checkpoint_after(config, 2);
  EXPECT_THAT(
      said_on_loading(changed(saved, {"optimizer_state_dict", "state", int64_t{0}}, std::nullopt),
                      config),
      HasSubstr("The checkpoint's optimizer has no state for 1 of 6 parameters"));
}

TEST(ResumeSays, WhichNumbersOfTheOptimizerGiveWayToTheConfig) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    TrainerConfig config = config_for(Precision::kFp32, optimizer);
    config.schedule = ScheduleKind::kConstant;
    config.warmup_steps = 0;
    config.lr = 0.25;
    config.weight_decay = 0.5;
    const base::StateDict saved = checkpoint_after(config, 6);
    config.lr = 0.125;
    config.weight_decay = 0.0625;
    config.momentum = 0.75;
    EXPECT_EQ(
        said_on_loading(saved, config),
        std::string("The checkpoint's lr, 0.25, gives way to this run's, 0.125.\n"
                    "The checkpoint's weight_decay, 0.5, gives way to this run's, 0.0625.\n") +
            (optimizer == OptimizerKind::kSgd
                 ? "The checkpoint's momentum, 0.9, gives way to this run's, 0.75.\n"
                 : ""));
  }
}

TEST(ResumeScaler, TakesAnotherGrowthIntervalOver) {
  TrainerConfig config = config_for(Precision::kFp16, OptimizerKind::kAdamW);
  config.init_scale = 1024;
  config.growth_interval = 100;
  const base::StateDict saved = checkpoint_after(config, 2);
  config.growth_interval = 1;
  config.steps = 4;
  Trainer trainer(config, toy::parts(toy::make_net(9), toy::data(30)));
  trainer.load_state_dict(saved);
  trainer.run();
  const base::StateDict scaler = trainer.state_dict().at("scaler_state_dict").to_dict();
  EXPECT_EQ(scaler.at("growth_interval").to_int(), 1);
  EXPECT_EQ(scaler.at("scale").to_double(), 4096.0);  // grew after each of two steps
}

TEST(ResumeSays, ThatAveragesStartAnewOrAreNotUsed) {
  const TrainerConfig plain = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  TrainerConfig averaging = plain;
  averaging.ema_decay = 0.75;
  EXPECT_THAT(said_on_loading(checkpoint_after(plain, 2), averaging),
              HasSubstr("no averaged weights (ema_state_dict): the average starts anew"));
  EXPECT_THAT(said_on_loading(checkpoint_after(averaging, 2), plain),
              HasSubstr("averaged weights (ema_state_dict) are not used"));
}

// The five keys of PyTorch's tutorial; `loss` is whatever the script had.
base::StateDict pythons_keys(const base::StateDict& saved) {
  base::StateDict file;
  for (const char* key :
       {"epoch", "model_state_dict", "optimizer_state_dict", "scaler_state_dict"}) {
    file.set(key, saved.at(key));
  }
  file.set("loss", torch::tensor(0.25F));
  return file;
}

TEST(ResumePython, AFileWithTheFiveKeysGoesOnAndTheRestIsSaidToStartAnew) {
  TrainerConfig config = config_for(Precision::kFp16, OptimizerKind::kAdamW);
  config.init_scale = 1024;
  const base::StateDict saved = checkpoint_after(config, 4);  // one epoch
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text + "\n"; };
  Trainer trainer(config, toy::parts(toy::make_net(9), toy::data(30)), callbacks);
  trainer.load_state_dict(pythons_keys(saved));
  EXPECT_THAT(said, HasSubstr("no train_state, as one of Python's: the run goes on after epoch 1 "
                              "and step 4, the optimizer's count."));
  EXPECT_THAT(said, HasSubstr("no lr_scheduler_state_dict: the learning rate is that of step 4"));
  EXPECT_THAT(said, HasSubstr("no rng_state"));
  EXPECT_THAT(said, HasSubstr("no scaler_history"));
  const base::StateDict loaded = trainer.state_dict();
  for (const char* part : {"model_state_dict", "optimizer_state_dict", "scaler_state_dict",
                           "lr_scheduler_state_dict"}) {
    EXPECT_TRUE(same(loaded.at(part).to_dict(), saved.at(part).to_dict())) << part;
  }
  EXPECT_EQ(trainer.run().epochs, 3);
}

TEST(ResumePython, AnotherOptimizersFileIsRefusedByBothNames) {
  const TrainerConfig sgd = config_for(Precision::kFp32, OptimizerKind::kSgd);
  Trainer trainer(config_for(Precision::kFp32, OptimizerKind::kAdamW),
                  toy::parts(toy::make_net(3), toy::data(30)));
  const base::StateDict file = pythons_keys(checkpoint_after(sgd, 2));
  EXPECT_THAT(toy::message_of<base::CheckpointError>([&] { trainer.load_state_dict(file); }),
              HasSubstr("param_groups[0] is of SGD, the optimizer is AdamW"));
}

class ResumeEma : public ::testing::TestWithParam<std::tuple<Way, int64_t>> {};

TEST_P(ResumeEma, GivesTheAveragesAndValidationsOfARunThatNeverStopped) {
  const auto [way, stop_after] = GetParam();
  TrainerConfig config = config_for(way.first, OptimizerKind::kAdamW);
  config.master_weights = way.second;
  config.ema_decay = 0.75;
  Record straight;
  {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30, 6)), recording(straight, 0));
    trainer.run();
    keep_tensors(straight, trainer);
  }
  const TemporaryFolder folder;
  config.checkpoint = folder / "last.pt";
  Record resumed;
  {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30, 6)),
                    recording(resumed, stop_after));
    toy::message_of<base::Interrupted>([&] { trainer.run(); });
  }
  Trainer trainer(config, toy::parts(toy::make_net(99), toy::data(30, 6)), recording(resumed, 0));
  trainer.load_state_dict(checkpoint::load(config.checkpoint));
  trainer.run();
  keep_tensors(resumed, trainer);
  EXPECT_TRUE(straight == resumed);
  EXPECT_EQ(straight.epochs, resumed.epochs);
}

INSTANTIATE_TEST_SUITE_P(Of, ResumeEma,
                         ::testing::Combine(::testing::Values(Way(Precision::kFp32, false),
                                                              Way(Precision::kFp16, false),
                                                              Way(Precision::kBf16, true)),
                                            ::testing::Values(1, 6, -1)));

// decay * average + (1 - decay) * weight by hand, in double; the first step takes the weight.
TEST(TrainerEma, AveragesAppliedStepsAndValidatesWithTheAverage) {
  TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kSgd);
  config.ema_decay = 0.75;
  config.epochs = 1;
  toy::Net net = toy::make_net(3);
  std::vector<torch::Tensor> weights;
  std::vector<double> validations;
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_step = [&](const StepMetrics&) {
    weights.push_back(net->fc2->weight.detach().to(torch::kDouble));
  };
  callbacks.on_epoch = [&](const EpochMetrics& metrics) {
    validations.push_back(metrics.val_loss);
  };
  callbacks.on_message = [&](const std::string& text) { said += text; };
  Trainer trainer(config, toy::parts(net, toy::data(30, 6)), callbacks);
  trainer.run();
  EXPECT_THAT(said, HasSubstr("Validation uses the averaged weights"));
  torch::Tensor expected = weights[0];
  for (size_t i = 1; i < weights.size(); ++i) expected = 0.75 * expected + 0.25 * weights[i];
  const base::StateDict ema = trainer.state_dict().at("ema_state_dict").to_dict();
  EXPECT_EQ(ema.at("n_averaged").to_int(), 4);
  const torch::Tensor average = ema.at("module.fc2.weight").to_tensor();
  EXPECT_TRUE(torch::allclose(average.to(torch::kDouble), expected, 0, 4 * 0x1p-24));
  EXPECT_TRUE(torch::equal(net->fc2->weight.to(torch::kDouble), weights.back()));
  // The average in the place of the weights gives the loss that validation reported.
  const torch::NoGradGuard no_grad;
  for (const auto& item : net->named_parameters()) {
    item.value().copy_(ema.at("module." + item.key()).to_tensor());
  }
  net->eval();
  const Batch batch = toy::Data(6).collate({0, 1, 2, 3, 4, 5});
  const double loss =
      torch::cross_entropy_loss(net->forward(batch.input), batch.target).item<double>();
  EXPECT_NEAR(validations.at(0), loss, 1e-6);
}

TEST(ResumeErrors, OtherOrderOfTheDataIsRefusedInTheMiddleOfAnEpochAlone) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  TrainerConfig other = config;
  other.batch = 8;
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text; };
  Trainer trainer(other, toy::parts(toy::make_net(3), toy::data(30)), callbacks);
  EXPECT_THAT(toy::message_of<base::CheckpointError>(
                  [&] { trainer.load_state_dict(checkpoint_after(config, 2)); }),
              HasSubstr("In the middle of epoch 1 the data were 30 examples of toy, batch 4"));
  trainer.load_state_dict(checkpoint_after(config, 4));
  EXPECT_THAT(said, HasSubstr("batch 8"));
}

TEST(ResumeErrors, OtherOptimizerIsRefused) {
  Trainer trainer(config_for(Precision::kFp32, OptimizerKind::kSgd),
                  toy::parts(toy::make_net(3), toy::data(30)));
  const base::StateDict saved =
      checkpoint_after(config_for(Precision::kFp32, OptimizerKind::kAdamW), 2);
  EXPECT_THAT(toy::message_of<base::CheckpointError>([&] { trainer.load_state_dict(saved); }),
              HasSubstr("holds the state of AdamW, but this run uses SGD"));
}

TEST(ResumeErrors, OtherModelIsRefusedAndNothingIsChanged) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  torch::nn::Linear model(toy::kFeatures, toy::kClasses);
  const torch::Tensor before = model->weight.detach().clone();
  TrainerParts parts;
  parts.module = model.ptr();
  parts.forward = [model](const torch::Tensor& input) mutable { return model->forward(input); };
  parts.data = toy::data(30);
  Trainer trainer(config, parts);
  EXPECT_THROW(trainer.load_state_dict(checkpoint_after(config, 2)), base::CheckpointError);
  EXPECT_TRUE(torch::equal(model->weight, before));
}

TEST(ResumeErrors, PrecisionMayChangeAndIsTold) {
  const base::StateDict saved =
      checkpoint_after(config_for(Precision::kFp32, OptimizerKind::kAdamW), 2);
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text; };
  Trainer trainer(config_for(Precision::kFp16, OptimizerKind::kAdamW),
                  toy::parts(toy::make_net(3), toy::data(30)), callbacks);
  trainer.load_state_dict(saved);
  EXPECT_THAT(said, HasSubstr("Resumed in fp16; the checkpoint was written in fp32."));
  EXPECT_EQ(trainer.run().epochs, 3);
}

// The file holds the whole float32 weight either way.
TEST(ResumeMasterWeights, BeginAndEndBetweenTwoStepsWithoutATrace) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    TrainerConfig config = config_for(Precision::kBf16, optimizer);
    Record expected;
    Trainer straight(config, toy::parts(toy::make_net(3), toy::data(30)));
    straight.run();
    keep_tensors(expected, straight);
    for (const bool first : {false, true}) {
      config.master_weights = first;
      const base::StateDict saved = checkpoint_after(config, 6);
      config.master_weights = !first;
      Trainer resumed(config, toy::parts(toy::make_net(9), toy::data(30)));
      resumed.load_state_dict(saved);
      resumed.run();
      Record record;
      keep_tensors(record, resumed);
      EXPECT_TRUE(record == expected) << to_string(optimizer) << ", masters first: " << first;
    }
  }
}

// The products of these nets are small: every table but the plain one multiplies them itself.
class ResumeChoices : public testing::Test {
 protected:
  ResumeChoices() { kernels::use_cpu_table(**kernels::cpu_tables().begin()); }
  ~ResumeChoices() override {
    kernels::use_cpu_table(before_);
    ops::detail::set_times_hook(nullptr);
    ops::clear_choices();
  }

 private:
  const kernels::KernelTable& before_ = kernels::cpu_table();
};

void float32_is_faster(ops::Choice& choice) { choice.us = {2.0, 1.0}; }
void libtorch_is_faster(ops::Choice& choice) { choice.us = {1.0, 2.0}; }

// The second process would choose otherwise; it follows the checkpoint's choices.
TEST_F(ResumeChoices, GoOnFromTheCheckpoint) {
  for (const bool float32 : {true, false}) {
    const auto first = float32 ? float32_is_faster : libtorch_is_faster;
    const auto later = float32 ? libtorch_is_faster : float32_is_faster;
    TrainerConfig config = config_for(Precision::kBf16, OptimizerKind::kAdamW);
    ops::clear_choices();
    ops::detail::set_times_hook(first);
    Record straight;
    Trainer whole(config, toy::parts(toy::make_net(3), toy::data(30, 6)), recording(straight, 0));
    whole.run();
    keep_tensors(straight, whole);
    ops::clear_choices();
    const TemporaryFolder folder;
    config.checkpoint = folder / "last.pt";
    Record resumed;
    {
      Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30, 6)),
                      recording(resumed, 6));
      toy::message_of<base::Interrupted>([&] { trainer.run(); });
    }
    ops::clear_choices();  // another process
    ops::detail::set_times_hook(later);
    Trainer trainer(config, toy::parts(toy::make_net(9), toy::data(30, 6)), recording(resumed, 0));
    trainer.load_state_dict(checkpoint::load(config.checkpoint));
    trainer.run();
    keep_tensors(resumed, trainer);
    EXPECT_TRUE(resumed == straight) << float32;
    const ops::ChoiceCount count = ops::count_choices();
    EXPECT_GT(count.all, 0);
    EXPECT_EQ(count.float32, float32 ? count.all : 0);
    ops::detail::set_times_hook(nullptr);
    ops::clear_choices();
  }
}

TEST_F(ResumeChoices, OfAnotherCpuAreMadeAnew) {
  TrainerConfig config = config_for(Precision::kBf16, OptimizerKind::kAdamW);
  base::StateDict saved = checkpoint_after(config, 6);
  base::StateDict choices = saved.at("ops_choices").to_dict();
  choices.set("cpu", "Another CPU");
  saved.set("ops_choices", choices);
  ops::clear_choices();
  std::string said;
  TrainerCallbacks callbacks;
  callbacks.on_message = [&](const std::string& text) { said += text; };
  Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30)), callbacks);
  trainer.load_state_dict(saved);
  EXPECT_THAT(said, HasSubstr("chosen on another CPU (Another CPU); they are chosen anew."));
  EXPECT_EQ(ops::count_choices().all, 0);
}

TEST_F(ResumeChoices, OffKeepsThemOffWhileTheTrainerLives) {
  TrainerConfig config = config_for(Precision::kBf16, OptimizerKind::kAdamW);
  config.ops_choices = false;
  ops::clear_choices();
  {
    Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30)));
    EXPECT_FALSE(ops::choosing());
    trainer.run();
  }
  EXPECT_EQ(ops::count_choices().all, 0);
}

TEST(ResumeErrors, FinishedRunHasNothingLeftToDo) {
  const TrainerConfig config = config_for(Precision::kFp32, OptimizerKind::kAdamW);
  Trainer trainer(config, toy::parts(toy::make_net(3), toy::data(30)));
  trainer.run();
  Trainer again(config, toy::parts(toy::make_net(4), toy::data(30)));
  again.load_state_dict(trainer.state_dict());
  EXPECT_FALSE(again.run().last_epoch);
}

}  // namespace
}  // namespace torchamp::train
