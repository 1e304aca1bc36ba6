// GradScaler: misuse that is one warning, what must not warn, and how often a step reads the
// device.

#include <atomic>
#include <map>

#include <ATen/record_function.h>

#include "amp/support.h"
#include "torchamp/amp/activation_checkpoint.h"
#include "torchamp/amp/autocast.h"
#include "torchamp/torchamp.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;

const std::string kClip = "[clip_grad_norm_] The gradients still hold a loss scale";

// y = sum(p * (3, 4)): the gradient is (3, 4), its norm 5.
at::Tensor loss_of(const at::Tensor& p) { return (p * torch::tensor({3.0F, 4.0F})).sum(); }
at::Tensor two_zeros() { return torch::zeros({2}).requires_grad_(); }

TEST(ClipBeforeUnscale, IsOneWarningForAScaler) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto p = two_zeros();
  const auto optimizer = sgd({p});
  for (int i = 0; i < 3; ++i) {
    optimizer->zero_grad();
    scaler.scale(loss_of(p)).backward();
    clip_grad_norm_({p}, 1.0);
    scaler.step(*optimizer);
    scaler.update();
    EXPECT_EQ(warnings.count(kClip + " of 1024, so max_norm = 1"), 1);
  }
  EXPECT_EQ(warnings.texts().size(), 1U);
  GradScaler other({.init_scale = 512});
  other.scale(loss_of(p)).backward();
  clip_grad_norm_({p}, 1.0);
  EXPECT_EQ(warnings.count(kClip + " of 512"), 1);
}

TEST(ClipBeforeUnscale, IsSeenPerOptimizer) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto p = two_zeros();
  const auto q = two_zeros();
  const auto o1 = sgd({p});
  const auto o2 = sgd({q});
  scaler.scale(loss_of(p) + loss_of(q)).backward();
  scaler.unscale_(*o1);
  clip_grad_norm_({p}, 1.0);
  EXPECT_EQ(warnings.count(kClip), 0);
  clip_grad_norm_({p, q}, 1.0);
  EXPECT_EQ(warnings.count(kClip), 1);
}

TEST(ClipBeforeUnscale, DoesNotWarnOfTheRightOrder) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto p = two_zeros();
  const auto optimizer = sgd({p});
  for (int i = 0; i < 3; ++i) {
    optimizer->zero_grad();
    for (int pass = 0; pass < 2; ++pass) {  // accumulation
      scaler.scale(loss_of(p)).backward();
    }
    scaler.unscale_(*optimizer);
    EXPECT_EQ(clip_grad_norm_({p}, 1.0).item<float>(), 10.0F);
    scaler.step(*optimizer);
    clip_grad_norm_({p}, 1.0);  // pointless, but of unscaled gradients
    scaler.update();
    clip_grad_norm_({p}, 1.0);
  }
  EXPECT_TRUE(warnings.texts().empty());
}

// The generator's scaled pass reaches the discriminator, whose gradients are dropped and made anew.
TEST(ClipBeforeUnscale, DoesNotWarnOfAGradientThatWasDroppedAndMadeAnew) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto generator = two_zeros();
  const auto discriminator = torch::ones({2}).requires_grad_();
  const auto og = sgd({generator}, 0.01);
  const auto od = sgd({discriminator}, 0.01);
  for (int i = 0; i < 3; ++i) {
    og->zero_grad();
    scaler.scale(loss_of(generator * discriminator)).backward();
    od->zero_grad();
    loss_of(discriminator).backward();
    clip_grad_norm_({discriminator}, 1.0);
    od->step();
    scaler.unscale_(*og);
    clip_grad_norm_({generator}, 1.0);
    scaler.step(*og);
    scaler.update();
  }
  EXPECT_TRUE(warnings.texts().empty()) << warnings.texts().front();
  scaler.scale(loss_of(generator * discriminator)).backward();  // adds to a plain gradient
  clip_grad_norm_({discriminator}, 1.0);
  EXPECT_EQ(warnings.count(kClip), 1);
}

TEST(ClipBeforeUnscale, DoesNotWarnOfWhatHoldsNoScale) {
  const Warnings warnings;
  GradScaler scaler({.init_scale = 1024});
  const auto scaled = two_zeros();
  const auto plain = two_zeros();
  scaler.scale(loss_of(scaled)).backward();
  // A model that is trained without a scaler beside one that is trained with.
  loss_of(plain).backward();
  clip_grad_norm_({plain}, 1.0);
  // A scale of 1, whether it is so from the start or set.
  GradScaler by_one({.init_scale = 1, .dynamic = false});
  by_one.scale(loss_of(plain)).backward();
  clip_grad_norm_({plain}, 1.0);
  // A disabled scaler.
  GradScaler disabled({.enabled = false});
  disabled.scale(loss_of(plain)).backward();
  clip_grad_norm_({plain}, 1.0);
  // A scaled loss that nobody has called backward() on.
  const auto scaled_loss = scaler.scale(loss_of(plain));
  clip_grad_norm_({plain}, 1.0);
  // autograd::grad and backward(inputs) leave this gradient alone.
  const auto gradient = torch::autograd::grad({scaled_loss}, {plain}, {}, /*retain_graph=*/true);
  clip_grad_norm_({plain}, 1.0);
  const auto other = two_zeros();
  const std::vector<at::Tensor> inputs{other};
  scaler.scale(loss_of(plain) + loss_of(other)).backward({}, false, false, inputs);
  clip_grad_norm_({plain}, 1.0);
  EXPECT_TRUE(warnings.texts().empty()) << warnings.texts().front();
  clip_grad_norm_({other}, 1.0);  // and this one is scaled
  EXPECT_EQ(warnings.count(kClip), 1);
}

TEST(ClipBeforeUnscale, IsForgottenWithTheScaler) {
  const Warnings warnings;
  const auto p = two_zeros();
  at::Tensor late;
  {
    GradScaler scaler({.init_scale = 1024});
    scaler.scale(loss_of(p)).backward();
    late = scaler.scale(loss_of(p));
  }
  late.backward();  // the scaler is gone
  clip_grad_norm_({p}, 1.0);
  EXPECT_TRUE(warnings.texts().empty());
}

TEST(ClipBeforeUnscale, IsSeenThroughAMovedScaler) {
  const Warnings warnings;
  const auto p = two_zeros();
  GradScaler first({.init_scale = 1024});
  const auto loss = first.scale(loss_of(p));
  GradScaler second(std::move(first));
  loss.backward();
  clip_grad_norm_({p}, 1.0);
  EXPECT_EQ(warnings.count(kClip), 1);
}

TEST(ClipBeforeUnscale, IsSeenThroughActivationCheckpoint) {
  const Warnings warnings;
  const auto p = two_zeros();
  GradScaler scaler({.init_scale = 1024});
  const auto loss = amp::activation_checkpoint([p](const at::Tensor& x) { return loss_of(p * x); },
                                               torch::ones({2}));
  scaler.scale(loss).backward();
  clip_grad_norm_({p}, 1.0);
  EXPECT_EQ(warnings.count(kClip), 1);
}

// Case 5: without the warning's advice the norm is 1024 times too large.
TEST(ClipBeforeUnscale, StillClipsWhatItWasGiven) {
  const Warnings warnings;
  GradScaler scaler({.init_scale = 1024});
  const auto p = two_zeros();
  const auto optimizer = sgd({p});
  scaler.scale(loss_of(p)).backward();
  EXPECT_EQ(clip_grad_norm_({p}, 1.0).item<float>(), 5120.0F);
  scaler.step(*optimizer);
  EXPECT_NEAR(p[0].item<float>(), -0.6 / 1024, 1e-9);
}

TEST(BFloat16Parameters, WithAScalerAreOneWarning) {
  const auto bf16 = [] {
    auto p = torch::ones({2}, at::kBFloat16).requires_grad_();
    p.mutable_grad() = torch::ones({2}, at::kBFloat16);
    return p;
  };
  const Warnings warnings;
  auto scaler = ready({.init_scale = 1024});
  const auto p = bf16();
  const auto q = bf16();
  const auto optimizer = sgd({P(1, 1), p});
  const auto other = sgd({q});
  scaler.unscale_(*optimizer);
  scaler.step(*other);
  EXPECT_EQ(warnings.count("The gradient of parameter 1 of group 0, shape [2], is BFloat16"), 1);
  EXPECT_EQ(warnings.texts().size(), 1U);
  auto by_one = ready({.init_scale = 1, .dynamic = false});  // only looks for inf and NaN
  by_one.step(*sgd({bf16()}));
  EXPECT_EQ(warnings.texts().size(), 1U);
}

at::Tensor low_precision_loss(const at::Tensor& w, at::ScalarType dtype) {
  const amp::Autocast region(at::kCPU, dtype);
  return torch::mm(torch::ones({1, 1}), w).to(at::kFloat).sum();
}

TEST(Float16WithoutAScaler, IsOneWarningWhenItsBackwardRuns) {
  const std::string text = "The scaler is disabled, but backward() computes in float16";
  const auto w = torch::ones({1, 1}).requires_grad_();
  const Warnings warnings;
  {
    GradScaler scaler({.enabled = false});
    const auto loss = low_precision_loss(w, at::kHalf);
    EXPECT_TRUE(scaler.scale(loss).is_same(loss));
    EXPECT_EQ(warnings.count(text), 0);
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    scaler.scale(low_precision_loss(w, at::kHalf)).backward();
    EXPECT_EQ(warnings.count(text), 1);
  }
  {
    GradScaler scaler({.enabled = false});
    scaler.scale(low_precision_loss(w, at::kBFloat16)).backward();
    scaler.scale((w * 2).sum()).backward();
  }
  {
    GradScaler scaler({.enabled = false});
    const torch::NoGradGuard inference;
    scaler.scale(low_precision_loss(w, at::kHalf));
  }
  {
    GradScaler scaler({.init_scale = 1024});
    scaler.scale(low_precision_loss(w, at::kHalf)).backward();
  }
  EXPECT_EQ(warnings.texts().size(), 1U);
}

TEST(GradScalerOptimizers, ParameterListedTwiceIsReportedOnce) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, 1024);
  const auto q = P(1, 1024);
  const auto optimizer = sgd({q, p, p});
  for (int i = 0; i < 2; ++i) {
    set_grad(p, 1024);
    set_grad(q, 1024);
    scaler.scale(torch::zeros({}));
    scaler.step(*optimizer);
    EXPECT_EQ(grad(p), 1.0F);
    scaler.update();
  }
  EXPECT_EQ(warnings.count("lists one tensor twice, as parameter 1 of group 0, shape [1], and as "
                           "parameter 2 of group 0"),
            1);
  EXPECT_EQ(warnings.texts().size(), 1U);
  EXPECT_EQ(value(p), 1.0F - 4.0F);
  EXPECT_EQ(value(q), 1.0F - 2.0F);
}

TEST(GradScalerOptimizers, ParametersWithOneGradientAreNotCalledOneParameter) {
  auto scaler = ready(1024);
  const Warnings warnings;
  const auto p = P(1, 1024);
  const auto q = P(1);
  q.mutable_grad() = p.grad();
  const auto r = P(1, 1024);
  const auto optimizer = sgd({p, q, r});
  scaler.step(*optimizer);
  EXPECT_EQ(value(q), 0.0F);
  EXPECT_TRUE(warnings.texts().empty());
}

TEST(GradScalerClosures, LbfgsIsRefusedBeforeAnythingHappens) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  torch::optim::LBFGS optimizer({p}, torch::optim::LBFGSOptions(1.0));
  expect_contains(error_of([&] { scaler.step(optimizer); }),
                  "[step] LBFGS needs a closure. Closure use is not currently supported");
  EXPECT_EQ(grad(p), 1024.0F);
  EXPECT_EQ(value(p), 1.0F);
  int calls = 0;
  const auto closure = [&] {
    ++calls;
    optimizer.zero_grad();
    const auto loss = (p * p).sum();
    loss.backward();
    return loss;
  };
  expect_contains(error_of([&] { scaler.step(optimizer, closure); }), "Closure use is not");
  EXPECT_EQ(calls, 0);
  GradScaler disabled({.enabled = false});
  EXPECT_TRUE(disabled.step(optimizer, closure).applied());
  EXPECT_GT(calls, 0);
  EXPECT_NEAR(value(p), 0.0F, 1e-3);  // the minimum of p^2
}

class NeedsAClosure : public torch::optim::SGD {
 public:
  using torch::optim::SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(closure != nullptr, "a closure is needed");
    return closure();
  }
};

TEST(GradScalerClosures, OptimizerThatNeedsOneChangesNoParameterAndTheScalerGoesOn) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  NeedsAClosure optimizer({p}, torch::optim::SGDOptions(1.0));
  expect_contains(error_of([&] { scaler.step(optimizer); }), "a closure is needed");
  EXPECT_EQ(value(p), 1.0F);
  EXPECT_EQ(grad(p), 1.0F);  // unscaled, as after any step
  scaler.update();
  EXPECT_EQ(tracker(scaler), 1);
  EXPECT_EQ(scaler.applied_steps(), 0);
}

TEST(GradScalerRecheck, SparseSumThatOverflowsSkips) {
  // 3e38 + 3e38 is beyond float32; each alone is not.
  const auto gradient = [](bool coalesced, float scale) {
    const auto indices = torch::tensor({{1, coalesced ? 2 : 1}}, at::kLong);
    auto made = torch::sparse_coo_tensor(indices, torch::tensor({3e38F, 3e38F}) * scale, {3});
    return coalesced ? made.coalesce() : made;
  };
  for (const bool after_unscale : {false, true}) {
    for (const bool coalesced : {true, false}) {
      auto scaler = ready({.init_scale = 1, .dynamic = false});
      auto p = torch::zeros({3}).requires_grad_();
      const auto optimizer = sgd({p}, 0x1p-10);
      p.mutable_grad() = gradient(coalesced, after_unscale ? 0x1p-10F : 1.0F);
      if (after_unscale) {
        scaler.unscale_(*optimizer);
        p.mutable_grad()._values().mul_(1024);
      }
      const auto outcome = scaler.step(*optimizer);
      EXPECT_EQ(outcome.skipped(), !coalesced);
      EXPECT_EQ(p.grad().is_coalesced(), coalesced);
      if (!coalesced) {
        EXPECT_EQ(outcome.reason(), amp::StepOutcome::Reason::kInf);
        EXPECT_TRUE(p.detach().eq(0).all().item<bool>());
      }
    }
  }
}

TEST(GradScalerRecheck, ScaledSparseSumMayOverflowIfTheUnscaledOneDoesNot) {
  auto scaler = ready(1024);
  auto p = torch::zeros({3}).requires_grad_();
  p.mutable_grad() = torch::sparse_coo_tensor(torch::tensor({{1, 1}}, at::kLong),
                                              torch::tensor({3e38F, 3e38F}), {3});
  const auto optimizer = sgd({p}, 0.0);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
}

TEST(GradScalerRecheck, GradientMadeAnewByAScaledBackwardIsUnscaled) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto p = P(1);
  const auto optimizer = sgd({p});
  scaler.scale(p.sum()).backward();
  scaler.unscale_(*optimizer);
  optimizer->zero_grad();  // to undefined
  scaler.scale(3 * p.sum()).backward();
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(grad(p), 3.0F);
  EXPECT_EQ(value(p), -2.0F);  // in torch.amp 1 - 3 * 1024
  EXPECT_TRUE(warnings.texts().empty());
}

TEST(GradScalerRecheck, ScaledBackwardAddedAfterUnscaleIsOneWarning) {
  GradScaler scaler({.init_scale = 1024});
  const Warnings warnings;
  const auto p = P(1);
  const auto unused = P(1, 1024);
  const auto optimizer = sgd({unused, p});
  for (int i = 0; i < 2; ++i) {
    optimizer->zero_grad();
    scaler.scale((p + 0 * unused).sum()).backward();
    scaler.unscale_(*optimizer);
    scaler.scale(p.sum()).backward();
    scaler.step(*optimizer);
    EXPECT_EQ(grad(p), 1025.0F);
    scaler.update();
  }
  EXPECT_EQ(warnings.count("added to the gradient of parameter 1 of group 0"), 1);
  EXPECT_EQ(warnings.texts().size(), 1U);
}

TEST(GradScalerRecheck, GradientResetToUndefinedIsLeftOut) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  const auto q = P(1, 1024);
  const auto optimizer = sgd({p, q});
  scaler.unscale_(*optimizer);
  q.mutable_grad() = at::Tensor();
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
  EXPECT_EQ(value(q), 1.0F);
  scaler.update();
  set_grad(p, 1024);
  scaler.unscale_(*optimizer);
  optimizer->zero_grad();  // all of them
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(value(p), 0.0F);
  scaler.update();
  EXPECT_EQ(tracker(scaler), 2);
}

// Every way in which an op hands a device's number to the host ends in one of these.
class HostReads {
 public:
  HostReads() {
    counter().store(0);
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& call)
                                       -> std::unique_ptr<at::ObserverContext> {
          const std::string name = call.name();
          if (name == "aten::_local_scalar_dense" || name == "aten::equal" ||
              name == "aten::nonzero" || name == "aten::is_nonzero") {
            ++counter();
          }
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~HostReads() { at::removeCallback(handle_); }
  int64_t count() const { return counter().load(); }

 private:
  static std::atomic<int64_t>& counter() {
    static std::atomic<int64_t> count = 0;
    return count;
  }
  at::CallbackHandle handle_;
};

TEST(GradScalerReads, AreOneInAGoodStepWhateverIsWatched) {
  GradScaler scaler({.init_scale = 1024, .growth_interval = 2});
  const auto p = two_zeros();
  const auto q = P(1);
  const auto optimizer = sgd({p, q});
  for (int i = 0; i < 5; ++i) {  // the first of them makes the scale, the fourth grows it
    optimizer->zero_grad();
    const HostReads reads;
    amp::BufferGuard buffers({q.detach()});
    scaler.scale(loss_of(p) + q.sum()).backward();
    EXPECT_EQ(reads.count(), 0);
    if (i % 2 == 0) {
      scaler.unscale_(*optimizer);
      clip_grad_norm_({p, q}, 1.0);
      EXPECT_EQ(reads.count(), 0);
    }
    EXPECT_TRUE(buffers.follow(scaler.step(*optimizer)).applied());
    EXPECT_EQ(reads.count(), 1);
    scaler.update();
    EXPECT_EQ(reads.count(), 1);
    EXPECT_EQ(scaler.applied_steps() + scaler.skipped_steps(), i + 1);
    EXPECT_EQ(scaler.consecutive_skips(), 0);
    EXPECT_EQ(reads.count(), 1);
    scaler.get_scale();
    EXPECT_EQ(reads.count(), 2);
  }
  GradScaler fresh;
  const HostReads reads;
  EXPECT_EQ(fresh.get_scale(), 65536.0);
  EXPECT_EQ(reads.count(), 0);
}

TEST(GradScalerReads, AreOneForAnOptimizerAlsoWhenSkipped) {
  auto scaler = ready(1024);
  const auto p = P(1, kInf);
  const auto optimizer = sgd({p});
  const HostReads reads;
  const auto outcome = scaler.step(*optimizer);
  scaler.update();
  EXPECT_TRUE(outcome.skipped());
  EXPECT_EQ(reads.count(), 1);
  EXPECT_EQ(outcome.reason(), amp::StepOutcome::Reason::kInf);
  EXPECT_EQ(reads.count(), 2);  // told when it is asked for
  EXPECT_EQ(scaler.last_skips().size(), 1U);
  EXPECT_EQ(reads.count(), 3);  // the scale of the step
}

}  // namespace
}  // namespace torchamp::test
