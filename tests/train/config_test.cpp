#include "torchamp/train/config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "torchamp/base/error.h"
#include "train/toy.h"

namespace torchamp::train {
namespace {

using ::testing::HasSubstr;

TEST(TrainerConfig, DefaultsAreAccepted) {
  TrainerConfig config;
  EXPECT_NO_THROW(config.validate());
  EXPECT_EQ(config.resolved_lr(), 1e-3);
  EXPECT_EQ(config.resolved_weight_decay(), 1e-2);
  config.optimizer = OptimizerKind::kSgd;
  EXPECT_EQ(config.resolved_lr(), 1e-2);
  EXPECT_EQ(config.resolved_weight_decay(), 0.0);
  EXPECT_EQ(config.resolved_validate_precision(), Precision::kFp32);
}

TEST(TrainerConfig, NamesTheValueThatIsOutOfRange) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<std::string, std::function<void(TrainerConfig&)>>> wrong = {
      {"batch is 0", [](auto& c) { c.batch = 0; }},
      {"batch is -3", [](auto& c) { c.batch = -3; }},
      {"accumulate is 0", [](auto& c) { c.accumulate = 0; }},
      {"epochs is 0", [](auto& c) { c.epochs = 0; }},
      {"steps is -1", [](auto& c) { c.steps = -1; }},
      {"warmup-steps is -1", [](auto& c) { c.warmup_steps = -1; }},
      {"workers is -1", [](auto& c) { c.workers = -1; }},
      {"lr is 0", [](auto& c) { c.lr = 0.0; }},
      {"lr is nan", [](auto& c) { c.lr = std::nan(""); }},
      {"lr is inf", [inf](auto& c) { c.lr = inf; }},
      {"weight-decay is -1", [](auto& c) { c.weight_decay = -1.0; }},
      {"ema is 1", [](auto& c) { c.ema_decay = 1.0; }},
      {"ema is -0.5", [](auto& c) { c.ema_decay = -0.5; }},
      {"clip is 0", [](auto& c) { c.clip = 0.0; }},
      {"momentum is 1", [](auto& c) { c.momentum = 1.0; }},
      {"init-scale is 0", [](auto& c) { c.init_scale = 0.0; }},
      {"init-scale is 1e+39", [](auto& c) { c.init_scale = 1e39; }},
      {"growth-interval is 0", [](auto& c) { c.growth_interval = 0; }},
      {"max-skipped is 0", [](auto& c) { c.max_skipped_in_a_row = 0; }},
      {"master-weights is on and precision fp32", [](auto& c) { c.master_weights = true; }},
      {"validate-precision is fp32; with master-weights the precision of training, bf16",
       [](auto& c) {
         c.master_weights = true;
         c.precision = Precision::kBf16;
         c.validate_precision = Precision::kFp32;
       }},
  };
  for (const auto& [text, change] : wrong) {
    TrainerConfig config;
    change(config);
    EXPECT_THAT(toy::message_of<base::UsageError>([&] { config.validate(); }),
                ::testing::AllOf(HasSubstr(text), HasSubstr("is accepted.")));
  }
}

TEST(TrainerConfig, NamesOfChoicesGoBothWaysAndUnknownOnesListTheAccepted) {
  EXPECT_EQ(to_string(parse_optimizer("sgd")), "sgd");
  EXPECT_EQ(to_string(parse_schedule("cosine")), "cosine");
  EXPECT_EQ(to_string(parse_layout("channels_last")), "channels_last");
  EXPECT_EQ(to_string(parse_scaler_use("off")), "off");
  EXPECT_THAT(toy::message_of<base::UsageError>([] { parse_optimizer("adam2"); }),
              HasSubstr("'adam2' is not known; accepted are: adamw, sgd."));
}

}  // namespace
}  // namespace torchamp::train
