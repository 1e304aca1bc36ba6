// GradScaler: what it remembers of its steps, whether its search has stalled, the static scale, and
// outcomes that are read late.

#include <sstream>

#include "amp/support.h"
#include "torchamp/amp/step_history.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;
using amp::ScalerHealth;
using amp::StepOutcome;
using amp::detail::StepHistory;
using Reason = amp::StepOutcome::Reason;
using Stall = amp::ScalerHealth::Stall;

struct Loop {
  explicit Loop(amp::GradScalerOptions options) : scaler(ready(std::move(options))) {}
  void iterate(float gradient, int times = 1) {
    for (int i = 0; i < times; ++i) {
      set_grad(p, gradient);
      scaler.scale(torch::zeros({}));
      scaler.step(*optimizer);
      scaler.update();
    }
  }
  GradScaler scaler;
  at::Tensor p = P(1);
  std::unique_ptr<torch::optim::SGD> optimizer = sgd({p}, 0.0);
};

std::string text(const std::vector<amp::SkippedStep>& steps) {
  std::ostringstream stream;
  for (const auto& step : steps) {
    stream << step.iteration << ' ' << step.scale << ' ' << amp::to_string(step.reason) << '\n';
  }
  return stream.str();
}

TEST(GradScalerHistory, NamesIterationScaleAndReasonOfEachSkippedStep) {
  Loop loop({.init_scale = 1024, .growth_interval = 2});
  for (const float gradient : {0.0F, kInf, kNan, 0.0F, 0.0F, -kInf}) {
    loop.iterate(gradient);
  }
  // Halved by iterations 2 and 3, doubled at the end of 5.
  EXPECT_EQ(text(loop.scaler.last_skips()), "2 1024 inf\n3 512 nan\n6 512 inf\n");
  EXPECT_EQ(loop.scaler.applied_steps(), 3);
  EXPECT_EQ(loop.scaler.skipped_steps(), 3);
}

TEST(GradScalerHistory, KeepsTheLastOnesOnly) {
  Loop loop({.init_scale = 1024, .warn_after_skips = 0, .skip_history = 3});
  loop.iterate(kInf, 100);
  EXPECT_EQ(text(loop.scaler.last_skips()),
            "98 6.10352e-05 inf\n99 6.10352e-05 inf\n100 6.10352e-05 inf\n");  // 2^-14
  EXPECT_EQ(loop.scaler.skipped_steps(), 100);
  Loop none({.init_scale = 1024, .skip_history = 0});
  none.iterate(kInf);
  EXPECT_TRUE(none.scaler.last_skips().empty());
  EXPECT_EQ(none.scaler.skipped_steps(), 1);
}

TEST(GradScalerHistory, CountsAnIterationOnceWhateverItsOptimizers) {
  auto scaler = ready({.init_scale = 1024, .warn_after_skips = 0});
  const auto p = P(1);
  const auto q = P(1);
  const auto o1 = sgd({p});
  const auto o2 = sgd({q});
  for (const float gradient : {kInf, kInf, 0.0F}) {
    set_grad(p, gradient);
    set_grad(q, 0.0F);
    scaler.scale(torch::zeros({}));
    scaler.step(*o1);
    scaler.step(*o2);
    EXPECT_EQ(scaler.consecutive_skips(), scaler.health().iterations);  // not before update()
    scaler.update();
  }
  EXPECT_EQ(scaler.consecutive_skips(), 0);
  EXPECT_EQ(scaler.applied_steps(), 4);
  EXPECT_EQ(scaler.skipped_steps(), 2);
}

TEST(GradScalerHistory, PassesThroughItsStateDictAndNotThroughPythons) {
  Loop loop({.init_scale = 1024, .skip_history = 4});
  for (const float gradient : {kInf, 0.0F, kNan, kInf}) {
    loop.iterate(gradient);
  }
  EXPECT_EQ(loop.scaler.state_dict().size(), 5U);
  const auto saved = loop.scaler.history_state_dict();
  Loop resumed({.init_scale = 1024, .skip_history = 2});
  resumed.scaler.load_state_dict(loop.scaler.state_dict());
  resumed.scaler.load_history_state_dict(saved);
  EXPECT_EQ(text(resumed.scaler.last_skips()), "3 512 nan\n4 256 inf\n");
  EXPECT_EQ(resumed.scaler.applied_steps(), 1);
  EXPECT_EQ(resumed.scaler.skipped_steps(), 3);
  EXPECT_EQ(resumed.scaler.consecutive_skips(), 2);
  EXPECT_EQ(resumed.scaler.health().iterations_since_growth, 4);
  resumed.iterate(kInf);
  EXPECT_EQ(text(resumed.scaler.last_skips()), "4 256 inf\n5 128 inf\n");
  EXPECT_EQ(resumed.scaler.consecutive_skips(), 3);
}

TEST(GradScalerHistory, LoadIsAllOrNothing) {
  Loop loop({.init_scale = 1024});
  loop.iterate(kInf);
  const auto good = loop.scaler.history_state_dict();
  const auto refused = [&](const base::StateDict& dict, const std::string& part) {
    expect_contains(
        error_of<base::CheckpointError>([&] { loop.scaler.load_history_state_dict(dict); }), part);
    EXPECT_EQ(text(loop.scaler.last_skips()), "1 1024 inf\n");
    EXPECT_EQ(loop.scaler.health().iterations, 1);
  };
  for (const char* key : {"iterations", "applied_steps", "skipped_steps", "consecutive_skips",
                          "iterations_since_growth", "skips"}) {
    auto dict = good;
    dict.erase(std::string(key));
    refused(dict, key);
    dict.set(std::string(key), std::string(key) == "skips" ? base::Value("x") : base::Value(-1));
    refused(dict, key);
  }
  const auto with_skip = [&](base::Value value) {
    auto dict = good;
    dict.set("skips", base::List{{std::move(value)}});
    return dict;
  };
  refused(with_skip(base::Tuple{{1, 2.0}}), "has 2 items");
  refused(with_skip(base::Tuple{{1, 2.0, "why"}}), "'why'");
  refused(with_skip(base::Tuple{{"one", 2.0, "inf"}}), "iteration");
}

TEST(StepOutcome, IsReadOnFirstUseAndOnceForAllCopies) {
  const auto found = torch::zeros({});
  const auto outcome = StepOutcome::make_pending(found, torch::ones({}, at::kBool));
  const StepOutcome copy = outcome;
  EXPECT_FALSE(outcome.is_read());
  found.fill_(2);  // the sum of two devices' flags
  EXPECT_TRUE(outcome.skipped());
  EXPECT_TRUE(copy.is_read());
  found.fill_(0);
  EXPECT_TRUE(copy.skipped());
  EXPECT_EQ(copy.reason(), Reason::kNan);
  EXPECT_TRUE(StepOutcome::make_pending(torch::zeros({})).applied());
}

TEST(StepHistory, WaitsForNoOutcomeThatIsUnread) {
  StepHistory history(8);
  std::vector<StepOutcome> outcomes;
  for (int i = 0; i < 10; ++i) {
    outcomes.push_back(StepOutcome::make_pending(torch::full({}, i % 2 == 0 ? 0.0F : 1.0F)));
    history.note(outcomes.back(), torch::full({}, 16.0F));
    EXPECT_FALSE(history.end_iteration().has_value());
  }
  for (const auto& outcome : outcomes) {
    EXPECT_FALSE(outcome.is_read());
  }
  EXPECT_EQ(history.applied(), 5);
  EXPECT_EQ(history.skipped(), 5);
  EXPECT_EQ(history.consecutive_skips(), 1);
  EXPECT_EQ(history.last_skips().front().iteration, 2);
  EXPECT_TRUE(outcomes.front().is_read());
}

TEST(StepHistory, ReadsAnOutcomeThatWasLeftFarBehind) {
  StepHistory history(8);
  const auto first = StepOutcome::make_pending(torch::ones({}));
  history.note(first, torch::ones({}));
  for (size_t i = 0; i + 1 < StepHistory::kMostUnread; ++i) {
    history.note(StepOutcome::make_pending(torch::zeros({})), torch::ones({}));
  }
  EXPECT_FALSE(first.is_read());
  history.note(StepOutcome::make_pending(torch::zeros({})), torch::ones({}));
  EXPECT_TRUE(first.is_read());
}

TEST(StepHistory, CountsAlsoWhatNobodyReads) {
  StepHistory history(300);
  for (int i = 0; i < 300; ++i) {
    history.note(StepOutcome::make_pending(torch::full({}, i % 7 == 3 ? 1.0F : 0.0F)),
                 torch::full({}, static_cast<float>(i)));
    history.end_iteration();
  }
  EXPECT_EQ(history.applied(), 257);
  EXPECT_EQ(history.skipped(), 43);
  const auto skips = history.last_skips();
  ASSERT_EQ(skips.size(), 43U);
  for (int64_t k = 0; k < 43; ++k) {
    EXPECT_EQ(skips[static_cast<size_t>(k)].iteration, 4 + 7 * k);
    EXPECT_EQ(skips[static_cast<size_t>(k)].scale, static_cast<double>(3 + 7 * k));
  }
}

TEST(GradScalerHealth, IsWellWhileTheScaleIsFound) {
  Loop loop({.init_scale = 1024, .growth_interval = 2});
  loop.iterate(kInf, 3);
  loop.iterate(0.0F, 5);
  const auto health = loop.scaler.health();
  EXPECT_FALSE(health.is_stalled());
  EXPECT_EQ(health.scale, 512.0);  // 128, doubled twice
  EXPECT_EQ(health.iterations, 8);
  EXPECT_EQ(health.applied_steps, 5);
  EXPECT_EQ(health.skipped_steps, 3);
  EXPECT_EQ(health.consecutive_skips, 0);
  EXPECT_EQ(health.iterations_since_growth, 1);
  EXPECT_EQ(health.to_string(), "Loss scale 512 after 8 iterations: 5 steps applied, 3 skipped.");
}

TEST(GradScalerHealth, SeesTheFloor) {
  Loop loop({.init_scale = 16, .min_scale = 8});
  loop.iterate(kInf);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kAtFloor);  // 8 is as low as it goes
  expect_contains(loop.scaler.health().to_string(), "at its floor, 8");
  loop.iterate(0.0F);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kNone);  // a scale may rest there
}

TEST(GradScalerHealth, SeesARunOfSkipsAtASettableLength) {
  const Warnings warnings;
  Loop loop({.warn_after_skips = 3});
  loop.iterate(kNan, 2);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kNone);
  loop.iterate(kNan);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kSkipping);
  expect_contains(loop.scaler.health().to_string(), "3 iterations in a row were skipped");
  EXPECT_EQ(warnings.count("3 iterations in a row"), 1);
}

TEST(GradScalerHealth, SeesAScaleThatNeverGrows) {
  // An overflow every other iteration: the run of 2 that growth needs is never reached.
  Loop loop({.init_scale = 0x1p30, .growth_interval = 2, .stall_after_intervals = 3});
  for (int i = 0; i < 2; ++i) {
    loop.iterate(kInf);
    loop.iterate(0.0F);
  }
  loop.iterate(kInf);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kNone);
  loop.iterate(0.0F);
  const auto health = loop.scaler.health();
  EXPECT_EQ(health.stall, Stall::kNotGrowing);
  EXPECT_EQ(health.iterations_since_growth, 6);
  expect_contains(health.to_string(), "has not grown for 6 iterations: 3 skipped steps of 6");
  loop.scaler.update(1024.0);  // set by hand: a new search
  EXPECT_EQ(loop.scaler.health().stall, Stall::kNone);
  Loop at_ceiling({.init_scale = 4, .growth_interval = 1, .max_scale = 4});
  at_ceiling.iterate(0.0F, 20);
  EXPECT_EQ(at_ceiling.scaler.health().stall, Stall::kNone);  // it cannot grow, and need not
  Loop never({.init_scale = 0x1p30, .growth_interval = 1, .stall_after_intervals = 0});
  never.iterate(kInf, 20);
  EXPECT_EQ(never.scaler.health().stall, Stall::kNone);
}

TEST(GradScalerHealth, OfADisabledScalerCountsItsSteps) {
  GradScaler scaler({.enabled = false});
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  const auto health = scaler.health();
  EXPECT_EQ(health.applied_steps, 1);
  EXPECT_EQ(health.scale, 1.0);
  EXPECT_FALSE(health.is_stalled());
}

TEST(GradScalerStatic, KeepsItsScaleAndStillSkips) {
  Loop loop({.init_scale = 128, .growth_interval = 1, .dynamic = false, .warn_after_skips = 0});
  EXPECT_FALSE(loop.scaler.is_dynamic());
  const auto optimizer = sgd({loop.p});
  for (const float gradient : {128.0F, kInf, kNan, 128.0F}) {
    set_grad(loop.p, gradient);
    loop.scaler.scale(torch::zeros({}));
    loop.scaler.step(*optimizer);
    loop.scaler.update();
    EXPECT_EQ(loop.scaler.get_scale(), 128.0);
  }
  EXPECT_EQ(value(loop.p), -1.0F);  // two steps of 1
  EXPECT_EQ(text(loop.scaler.last_skips()), "2 128 inf\n3 128 nan\n");
  loop.scaler.update(64.0);  // by hand it moves
  EXPECT_EQ(loop.scaler.get_scale(), 64.0);
}

TEST(GradScalerStatic, HasNoFactorsToSetAndNoStallOfAScaleThatDoesNotMove) {
  Loop loop({.init_scale = 128, .growth_interval = 1, .dynamic = false, .min_scale = 128});
  EXPECT_EQ(loop.scaler.get_growth_factor(), 1.0);
  EXPECT_EQ(loop.scaler.get_backoff_factor(), 1.0);
  expect_contains(error_of<c10::ValueError>([&] { loop.scaler.set_growth_factor(2.0); }),
                  "[set_growth_factor] The scaler is static");
  expect_contains(error_of<c10::ValueError>([&] { loop.scaler.set_backoff_factor(0.5); }),
                  "[set_backoff_factor] The scaler is static");
  loop.iterate(0.0F, 20);
  loop.iterate(kInf);
  EXPECT_EQ(loop.scaler.health().stall, Stall::kNone);
}

// PyTorch 2.15, and 2.11 the same:
//   scaler = torch.amp.GradScaler(device="cpu"); scaler.load_state_dict({"scale": 128.0,
//       "growth_factor": 1.0, "backoff_factor": 1.0, "growth_interval": 2, "_growth_tracker": 0})
//   p = torch.zeros(1, requires_grad=True); sgd = torch.optim.SGD([p], lr=0.5, foreach=False)
//   scaler.scale(torch.zeros(())); and for each gradient:
//   p.grad = torch.full((1,), gradient); scaler.step(sgd); scaler.update()
TEST(GradScalerStatic, MovesAsAPythonScalerThatHasLoadedItsState) {
  struct Row {
    float gradient;
    int64_t growth_tracker;
    float parameter;
  };
  auto scaler = ready({.init_scale = 128, .growth_interval = 2, .dynamic = false});
  const auto p = P(0);
  const auto optimizer = sgd({p}, 0.5);
  for (const Row& row :
       {Row{128, 1, -0.5F}, Row{256, 0, -1.5F}, Row{kInf, 0, -1.5F}, Row{64, 1, -1.75F},
        Row{kNan, 0, -1.75F}, Row{32, 1, -1.875F}, Row{16, 0, -1.9375F}, Row{8, 1, -1.96875F}}) {
    set_grad(p, row.gradient);
    scaler.scale(torch::zeros({}));
    scaler.step(*optimizer);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 128.0);
    EXPECT_EQ(tracker(scaler), row.growth_tracker);
    EXPECT_EQ(value(p), row.parameter);
  }
}

TEST(GradScalerStatic, IsStoredInPythonsKeysAlone) {
  Loop loop({.init_scale = 128, .dynamic = false});
  const auto saved = loop.scaler.state_dict();
  EXPECT_EQ(saved.size(), 5U);
  EXPECT_EQ(saved.at("growth_factor").to_double(), 1.0);
  EXPECT_EQ(saved.at("backoff_factor").to_double(), 1.0);
  Loop other({.init_scale = 1024});
  other.scaler.load_state_dict(saved);
  EXPECT_FALSE(other.scaler.is_dynamic());
  other.iterate(kInf);
  EXPECT_EQ(other.scaler.get_scale(), 128.0);
  loop.scaler.load_state_dict(ready(1024).state_dict());  // and back
  EXPECT_TRUE(loop.scaler.is_dynamic());
  loop.iterate(kInf);
  EXPECT_EQ(loop.scaler.get_scale(), 512.0);
}

}  // namespace
}  // namespace torchamp::test
