// GradScaler: statements about torch.amp that the other files of this room do not test by the way.
// A letter and a number name the statement.

#include <cmath>
#include <limits>
#include <map>
#include <string>

#include <ATen/record_function.h>

#include "amp/support.h"
#include "torchamp/torchamp.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;
using Reason = amp::StepOutcome::Reason;

// G5: the scale is made by the first scale(), on the device of what it is given.
TEST(GradScalerScale, LivesOnTheDeviceOfTheFirstOutput) {
  GradScaler scaler({.init_scale = 1024});
  EXPECT_EQ(scaler.get_scale(), 1024.0);
  const auto scaled = scaler.scale(torch::ones({2}, at::TensorOptions().device(at::kMeta)));
  EXPECT_TRUE(scaled.is_meta());
  EXPECT_THROW(scaler.get_scale(), c10::Error);  // a meta tensor holds no number
}

template <typename T>
concept Scalable = requires(GradScaler& scaler, T value) {
  scaler.scale(value);
};

// G8: what is no tensor or list of tensors does not compile; in Python it is a ValueError.
static_assert(Scalable<at::Tensor> && Scalable<std::vector<at::Tensor>>);
static_assert(!Scalable<double> && !Scalable<std::string> && !Scalable<std::map<int, at::Tensor>>);

// G9: one copy of the scale for each device it is needed on, until the scale changes.
TEST(GradScalerScale, IsCopiedToAnotherDeviceOnce) {
  static int copies = 0;
  auto scaler = ready({.init_scale = 1024, .growth_interval = 1});
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& call)
                                     -> std::unique_ptr<at::ObserverContext> {
        copies += std::string(call.name()) == "aten::_to_copy" ? 1 : 0;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  const auto elsewhere = torch::ones({}, at::TensorOptions().device(at::kMeta));
  scaler.scale(std::vector<at::Tensor>{elsewhere, elsewhere, elsewhere});
  EXPECT_EQ(copies, 1);
  scaler.scale(elsewhere);
  EXPECT_EQ(copies, 1);
  at::removeCallback(handle);
  const auto p = P(1, 1024);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  scaler.update();  // the scale has grown
  EXPECT_EQ(value(scaler.scale(torch::ones({}))), 2048.0F);
}

// H4: step() does not divide again what unscale_() has divided.
TEST(GradScalerStep, DoesNotUnscaleTwice) {
  auto scaler = ready(1024);
  const auto p = P(1, 2048);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 2.0F);
  scaler.step(*optimizer);
  EXPECT_EQ(grad(p), 2.0F);
  EXPECT_EQ(value(p), -1.0F);
}

// H7: an iteration that was only unscaled counts, also as a bad one.
TEST(GradScalerStep, CountsABadIterationThatWasOnlyUnscaled) {
  auto scaler = ready(1024);
  const auto p = P(1, kInf);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 512.0);
  EXPECT_EQ(tracker(scaler), 0);
  EXPECT_EQ(scaler.skipped_steps(), 0);  // no step was asked for
}

class ReturningOptimizer : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    torch::optim::SGD::step(std::move(closure));
    return torch::full({}, 7.0F);
  }
};

// H9: what the optimizer returned, and whether it was called at all, are two things here.
TEST(GradScalerStep, HandsOverWhatTheOptimizerReturned) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  ReturningOptimizer optimizer({p}, torch::optim::SGDOptions(1.0));
  EXPECT_EQ(value(scaler.step(optimizer).loss()), 7.0F);
  scaler.update();
  set_grad(p, kInf);
  const auto skipped = scaler.step(optimizer);
  EXPECT_FALSE(skipped.loss().defined());
  EXPECT_TRUE(skipped.skipped());
  const auto plain = sgd({P(1, 1024)});
  const auto outcome = scaler.step(*plain);
  EXPECT_FALSE(outcome.loss().defined());
  EXPECT_TRUE(outcome.applied());
}

// H10: a disabled scaler forgives what an enabled one refuses.
TEST(GradScalerDisabled, AsksNothingOfItsArguments) {
  GradScaler scaler({.enabled = false});
  EXPECT_FALSE(scaler.scale(at::Tensor()).defined());
  const auto half = torch::ones({1}, at::kHalf).requires_grad_();
  half.mutable_grad() = torch::ones({1}, at::kHalf);
  const auto optimizer = sgd({half});
  scaler.unscale_(*optimizer);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  scaler.update(std::numeric_limits<double>::quiet_NaN());
  EXPECT_FALSE(scaler.health().is_stalled());
}

// H15: clipping by an infinite norm makes zeros and NaN of the gradients; the step is skipped.
TEST(GradScalerStep, IsSkippedAlthoughClippingHidTheInf) {
  auto scaler = ready(1024);
  const auto finite = P(1, 2048);
  const auto infinite = P(1, kInf);
  const auto optimizer = sgd({finite, infinite});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(value(clip_grad_norm_({finite, infinite}, 1.0)), kInf);
  EXPECT_EQ(grad(finite), 0.0F);
  EXPECT_TRUE(std::isnan(grad(infinite)));
  EXPECT_EQ(scaler.step(*optimizer).reason(), Reason::kInf);
  scaler.update();
  EXPECT_EQ(value(finite), 1.0F);
  EXPECT_EQ(scaler.get_scale(), 512.0);
  // The inf taken away altogether does not help either: it was found.
  scaler.scale(torch::zeros({}));
  set_grad(infinite, kInf);
  scaler.unscale_(*optimizer);
  infinite.mutable_grad().zero_();
  EXPECT_TRUE(scaler.step(*optimizer).skipped());
}

// U2: parameters without a gradient, undefined ones and frozen ones are passed over.
TEST(GradScalerGradients, MissingOnesArePassedOver) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto frozen = torch::ones({1});
  const auto optimizer = sgd({P(1), p, frozen});
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
  EXPECT_EQ(value(frozen), 1.0F);
}

// U11: a layout without a kernel is refused by name before anything changes.
TEST(GradScalerGradients, LayoutThatNoKernelTakesIsRefused) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  auto q = torch::zeros({2, 2}).requires_grad_();
  q.mutable_grad() = torch::eye(2).to_sparse_csr();
  const auto optimizer = sgd({p, q});
  const auto text = error_of<c10::ValueError>([&] { scaler.unscale_(*optimizer); });
  expect_contains(text, "parameter 1 of group 0, shape [2, 2], has layout SparseCsr");
  EXPECT_EQ(grad(p), 1024.0F);
}

// V1: optimizers on one scaler; one backoff, and a later good one grows nothing back.
TEST(GradScalerUpdate, BacksOffWhicheverOptimizerOverflowed) {
  for (const bool first : {true, false}) {
    auto scaler = ready({.init_scale = 1024, .growth_interval = 1});
    const auto p = P(1, first ? kNan : 1024);
    const auto q = P(1, first ? 1024 : kNan);
    const auto o1 = sgd({p});
    const auto o2 = sgd({q});
    scaler.step(*o1);
    scaler.step(*o2);
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 512.0);
    EXPECT_EQ(tracker(scaler), 0);
  }
}

// X2, X3: what a disabled scaler tells, and that it takes any state.
TEST(GradScalerDisabled, HasNoState) {
  GradScaler scaler({.init_scale = 8, .growth_factor = 3, .enabled = false});
  EXPECT_TRUE(scaler.state_dict().empty());
  EXPECT_EQ(scaler.get_scale(), 1.0);
  EXPECT_EQ(scaler.get_growth_factor(), 3.0);
  base::StateDict odd;
  odd.set("scale", "text");
  scaler.load_state_dict(odd);
  EXPECT_TRUE(scaler.state_dict().empty());
}

}  // namespace
}  // namespace torchamp::test
