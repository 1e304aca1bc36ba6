// GradScaler: construction, getters and setters, state_dict, the disabled scaler, resuming.

#include <sstream>
#include <type_traits>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/torchamp.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;
using amp::GradScalerOptions;

base::StateDict state(double scale, double growth, double backoff, int64_t interval,
                      int64_t growth_tracker) {
  base::StateDict dict;
  dict.set("scale", scale);
  dict.set("growth_factor", growth);
  dict.set("backoff_factor", backoff);
  dict.set("growth_interval", interval);
  dict.set("_growth_tracker", growth_tracker);
  return dict;
}

std::string text(const base::StateDict& dict) {
  std::ostringstream stream;
  for (const auto& [key, value] : dict.entries()) {
    stream << base::to_string(key) << ' ' << value.type_name() << ' ' << value.to_double() << '\n';
  }
  return stream.str();
}

TEST(GradScalerOptions, HavePythonsDefaults) {
  const GradScaler scaler;
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  EXPECT_EQ(scaler.get_min_scale(), 0x1p-14);
}

TEST(GradScalerOptions, RefuseValuesThatCannotWork) {
  const double inf = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto refused = [](GradScalerOptions options, const std::string& name) {
    const auto message = error_of<c10::ValueError>([&] { GradScaler scaler(options); });
    expect_contains(message, name);
    options.enabled = false;
    GradScaler disabled(options);  // a disabled scaler checks nothing
    EXPECT_FALSE(disabled.is_enabled());
  };
  for (const double wrong : {inf, nan, 0.0, -1.0, 1e39}) {
    refused({.init_scale = wrong}, "init_scale");
  }
  for (const double wrong : {1.0, 0.5, inf, nan}) {
    refused({.growth_factor = wrong}, "The growth factor must be > 1.0.");
  }
  for (const double wrong : {1.0, 0.0, -0.5, nan}) {
    refused({.backoff_factor = wrong}, "The backoff factor must be < 1.0");
  }
  for (const int64_t wrong : {int64_t{0}, int64_t{-1}, int64_t{1} << 31}) {
    refused({.growth_interval = wrong}, "growth_interval");
  }
  refused({.min_scale = 0.0}, "min_scale");
  refused({.min_scale = 0x1p-127}, "min_scale");
  refused({.init_scale = 1, .min_scale = 2}, "init_scale");
  refused({.init_scale = 4, .max_scale = 2}, "init_scale");
  refused({.max_scale = inf}, "max_scale");
  refused({.hysteresis = 0}, "hysteresis");
  refused({.warn_after_skips = -1}, "warn_after_skips");
}

TEST(GradScalerOptions, CudaWithoutCudaWarnsAndDisables) {
  if (torch::cuda::is_available()) {
    GTEST_SKIP() << "this machine has CUDA";
  }
  const Warnings warnings;
  const GradScaler scaler({.device = at::kCUDA});
  EXPECT_FALSE(scaler.is_enabled());
  EXPECT_EQ(warnings.texts(), (std::vector<std::string>{"torch.cuda.amp.GradScaler is enabled, but "
                                                        "CUDA is not available.  Disabling."}));
  const GradScaler disabled({.device = at::kCUDA, .enabled = false});
  EXPECT_EQ(warnings.texts().size(), 1U);
}

TEST(GradScalerOptions, SettersCheckLikeTheConstructor) {
  GradScaler scaler;
  scaler.set_growth_factor(3.0);
  scaler.set_backoff_factor(0.25);
  scaler.set_growth_interval(7);
  EXPECT_THROW(scaler.set_growth_factor(1.0), c10::ValueError);
  EXPECT_THROW(scaler.set_backoff_factor(0.0), c10::ValueError);
  EXPECT_THROW(scaler.set_growth_interval(0), c10::ValueError);
  EXPECT_EQ(scaler.get_growth_factor(), 3.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.25);
  EXPECT_EQ(scaler.get_growth_interval(), 7);
}

TEST(GradScalerState, HasPythonsKeysAndTypes) {
  EXPECT_EQ(text(ready(1024).state_dict()),
            "'scale' float 1024\n'growth_factor' float 2\n'backoff_factor' float 0.5\n"
            "'growth_interval' int 2000\n'_growth_tracker' int 0\n");
  EXPECT_EQ(text(GradScaler().state_dict()),
            "'scale' float 65536\n'growth_factor' float 2\n'backoff_factor' float 0.5\n"
            "'growth_interval' int 2000\n'_growth_tracker' int 0\n");
}

TEST(GradScalerState, LoadTakesOverTheInterval) {
  auto scaler = ready({.init_scale = 8, .growth_interval = 5});
  scaler.load_state_dict(state(64, 2, 0.5, 2000, 1999));
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 128.0);
  EXPECT_EQ(tracker(scaler), 0);
}

TEST(GradScalerState, LoadWithAShorterIntervalThanTheRunGrowsNext) {
  auto scaler = ready(8);
  scaler.load_state_dict(state(8, 2, 0.5, 3, 10));
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 16.0);
}

TEST(GradScalerState, LoadedScalerUnscalesBeforeAnyScale) {
  GradScaler scaler;
  scaler.load_state_dict(state(64, 2, 0.5, 3, 1));
  EXPECT_EQ(scaler.get_scale(), 64.0);
  const auto p = P(1, 128);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 2.0F);
  scaler.step(*optimizer);
  scaler.update();
  EXPECT_EQ(tracker(scaler), 2);
}

TEST(GradScalerState, LoadIsAllOrNothing) {
  auto scaler = ready(1024);
  const auto before = text(scaler.state_dict());
  const auto refused = [&](const base::StateDict& dict, const std::string& part) {
    expect_contains(error_of<base::CheckpointError>([&] { scaler.load_state_dict(dict); }), part);
    EXPECT_EQ(text(scaler.state_dict()), before);
  };
  refused({}, "The source state dict is empty, possibly because it was saved from a disabled");
  for (const char* key :
       {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}) {
    auto dict = state(64, 3, 0.25, 5, 1);
    dict.erase(std::string(key));
    refused(dict, key);
    dict.set(std::string(key), "text");
    refused(dict, key);
  }
  refused(state(0, 3, 0.25, 5, 1), "scale");
  refused(state(std::numeric_limits<double>::quiet_NaN(), 3, 0.25, 5, 1), "scale");
  refused(state(64, 1, 0.25, 5, 1), "growth_factor");
  refused(state(64, 3, 1, 5, 1), "backoff_factor");
  refused(state(64, 3, 0.25, 0, 1), "growth_interval");
  refused(state(64, 3, 0.25, 5, -1), "_growth_tracker");
}

TEST(GradScalerState, LoadKeepsTheIterationOfAnOptimizer) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  scaler.load_state_dict(state(64, 2, 0.5, 2000, 0));
  EXPECT_THROW(scaler.unscale_(*optimizer), c10::Error);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
}

TEST(GradScalerState, HysteresisRunIsSavedOnlyWhereItCounts) {
  auto scaler = ready({.init_scale = 1024, .hysteresis = 2});
  const auto p = P(1, kInf);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1024.0);
  const auto saved = scaler.state_dict();
  EXPECT_EQ(saved.at("_overflow_run").to_int(), 1);
  auto resumed = ready({.hysteresis = 2});
  resumed.load_state_dict(saved);
  set_grad(p, kInf);
  resumed.step(*optimizer);
  resumed.update();
  EXPECT_EQ(resumed.get_scale(), 512.0);
}

TEST(GradScalerDisabled, PassesEverythingThrough) {
  GradScaler scaler({.enabled = false});
  const auto loss = torch::ones({2}, at::kHalf);
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  scaler.unscale_(*optimizer);
  int calls = 0;
  const auto outcome = scaler.step(*optimizer, [&] {
    ++calls;
    return torch::full({}, 7.0F);
  });
  EXPECT_TRUE(outcome.applied());
  EXPECT_EQ(value(outcome.loss()), 7.0F);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(value(p), 0.0F);
  scaler.update();
  scaler.update(-1.0);
  scaler.update(at::Tensor());
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_TRUE(scaler.state_dict().empty());
  scaler.load_state_dict({});
  scaler.load_state_dict(state(0, 0, 0, 0, 0));
  EXPECT_EQ(scaler.get_scale(), 1.0);
  set_grad(p, kInf);
  EXPECT_TRUE(scaler.step(*optimizer).applied());  // even this, as without a scaler
}

static_assert(!std::is_copy_constructible_v<GradScaler> && !std::is_copy_assignable_v<GradScaler>);

TEST(GradScalerState, MovedScalerGoesOn) {
  auto first = ready(1024);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  first.unscale_(*optimizer);
  GradScaler second(std::move(first));
  EXPECT_THROW(second.unscale_(*optimizer), c10::Error);
  EXPECT_TRUE(second.step(*optimizer).applied());
}

struct Training {
  torch::nn::Linear model{2, 1};
  std::unique_ptr<torch::optim::AdamW> optimizer =
      std::make_unique<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.1));
  GradScaler scaler{{.init_scale = 8, .growth_interval = 3}};

  void train(int from, int to) {
    for (int i = from; i < to; ++i) {
      optimizer->zero_grad();
      at::Tensor loss;
      {
        const amp::Autocast region(at::kCPU, at::kBFloat16);
        loss = torch::mse_loss(model(torch::full({4, 2}, i + 1.0F)), torch::ones({4, 1}));
      }
      scaler.scale(loss).backward();
      scaler.step(*optimizer);
      scaler.update();
    }
  }
};

TEST(GradScalerState, ResumedTrainingIsBitEqual) {
  torch::manual_seed(1);
  Training whole;
  std::stringstream file;
  torch::save(whole.model, file);
  Training half;
  torch::load(half.model, file);
  whole.train(0, 10);
  half.train(0, 5);

  std::stringstream model_file;
  std::stringstream optimizer_file;
  torch::save(half.model, model_file);
  torch::save(*half.optimizer, optimizer_file);
  Training resumed;
  torch::load(resumed.model, model_file);
  torch::load(*resumed.optimizer, optimizer_file);
  resumed.scaler.load_state_dict(half.scaler.state_dict());
  resumed.train(5, 10);

  EXPECT_TRUE(resumed.model->weight.equal(whole.model->weight));
  EXPECT_TRUE(resumed.model->bias.equal(whole.model->bias));
  const auto expected = text(state(64, 2, 0.5, 3, 1));
  EXPECT_EQ(text(whole.scaler.state_dict()), expected);
  EXPECT_EQ(text(resumed.scaler.state_dict()), expected);
}

}  // namespace
}  // namespace torchamp::test
