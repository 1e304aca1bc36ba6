// GradScaler: scale() of every type and shape, dtypes and layouts of gradients, and the scale's own
// movement: growth, backoff, floor, ceiling, hysteresis, warnings.

#include <set>

#include <ATen/record_function.h>

#include "amp/support.h"
#include "torchamp/amp/autocast.h"

namespace torchamp::test {
namespace {

using amp::GradScaler;

TEST(GradScalerScale, KeepsFiniteWhatFits) {
  GradScaler scaler({.init_scale = 65536});
  const auto check = [&](const at::Tensor& input, at::ScalarType dtype) {
    const auto output = scaler.scale(input);
    EXPECT_EQ(output.scalar_type(), dtype) << input.scalar_type() << input.sizes();
    EXPECT_EQ(output.sizes(), input.sizes());
    EXPECT_TRUE(output.to(at::kDouble).eq(65536).all().item<bool>()) << output;
  };
  check(torch::ones({3}, at::kHalf), at::kFloat);
  check(torch::ones({1}, at::kHalf), at::kFloat);
  check(torch::ones({}, at::kHalf), at::kFloat);
  check(torch::ones({3}, at::kBFloat16), at::kBFloat16);
  check(torch::ones({}, at::kBFloat16), at::kFloat);
  check(torch::ones({}, at::kDouble), at::kDouble);
  check(torch::ones({2, 2}, at::kFloat), at::kFloat);
  check(torch::ones({}, at::kLong), at::kFloat);
}

TEST(GradScalerScale, KeepsTheStructureOfListsAndTuples) {
  GradScaler scaler({.init_scale = 4});
  const auto one = torch::ones({});
  const std::vector<std::vector<at::Tensor>> nested{{one, one}, {}, {one}};
  const auto scaled = scaler.scale(nested);
  ASSERT_EQ(scaled.size(), 3U);
  EXPECT_EQ(scaled[0].size(), 2U);
  EXPECT_TRUE(scaled[1].empty());
  EXPECT_EQ(value(scaled[2][0]), 4.0F);
  const auto [first, rest] = scaler.scale(std::tuple(one, std::array<at::Tensor, 2>{one, one * 2}));
  EXPECT_EQ(value(first), 4.0F);
  EXPECT_EQ(value(rest[1]), 8.0F);
  EXPECT_EQ(value(scaler.scale(std::pair(one, one)).second), 4.0F);
}

TEST(GradScalerScale, LetsTheGradientThrough) {
  GradScaler scaler({.init_scale = 1024});
  const auto p = torch::ones({3}, at::kHalf).requires_grad_();
  scaler.scale(p * 2).sum().backward();
  EXPECT_TRUE(p.grad().eq(2048).all().item<bool>());
}

TEST(GradScalerScale, SavesGradientsThatFloat16WouldFlushToZero) {
  const auto gradient_of = [](at::ScalarType dtype, double scale) {
    GradScaler scaler({.init_scale = scale});
    const auto w = torch::ones({1, 1}).requires_grad_();
    at::Tensor y;
    {
      const amp::Autocast region(at::kCPU, dtype);
      y = torch::mm(torch::ones({1, 1}), w);
    }
    scaler.scale((y.to(at::kFloat) * 1e-8).sum()).backward();
    const auto optimizer = sgd({w});
    scaler.unscale_(*optimizer);
    return w.grad().item<double>();
  };
  // Half keeps 11 bits of a normal value, bf16 keeps 8: rounding errs by 2^-11 and 2^-8 at most.
  EXPECT_EQ(gradient_of(at::kHalf, 1), 0.0);
  EXPECT_NEAR(gradient_of(at::kHalf, 65536), 1e-8, 1e-8 * 0x1p-11);
  EXPECT_NEAR(gradient_of(at::kBFloat16, 1), 1e-8, 1e-8 * 0x1p-8);
}

TEST(GradScalerScale, GraphsSurviveUpdate) {
  auto scaler = ready({.init_scale = 1024, .growth_interval = 1});
  const auto p = P(1);
  const auto optimizer = sgd({p});
  const auto first = scaler.scale(p.sum());
  const auto second = scaler.scale(p.sum() * 2);
  first.backward();
  scaler.step(*optimizer);
  scaler.update();
  optimizer->zero_grad();
  second.backward();  // in torch.amp the in-place update makes this an error
  EXPECT_EQ(grad(p), 2048.0F);
}

// A replayed CUDA graph reads the scale where it was captured, and writes it there for the next
// one.
TEST(GradScalerScale, StaysWhereItIsInMemory) {
  static std::set<const void*> scales, trackers;
  scales.clear();
  trackers.clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction& op)
                                     -> std::unique_ptr<at::ObserverContext> {
        if (std::string(op.name()) == "aten::_amp_update_scale_") {
          scales.insert(op.inputs()[0].toTensor().const_data_ptr());
          trackers.insert(op.inputs()[1].toTensor().const_data_ptr());
        }
        return nullptr;
      }).needsInputs(true));
  auto scaler = ready({.init_scale = 1024, .growth_interval = 2, .hysteresis = 2});
  const auto p = P(1);
  const auto optimizer = sgd({p});
  const auto iterate = [&](float gradient) {
    optimizer->zero_grad();
    scaler.scale(p.sum() * gradient).backward();
    scaler.step(*optimizer);
    scaler.update();
  };
  std::vector<double> seen;
  for (const float gradient : {1.0F, 1.0F, kInf, kInf, 1.0F}) {
    iterate(gradient);
    seen.push_back(scaler.get_scale());
  }
  EXPECT_EQ(seen, (std::vector<double>{1024, 2048, 2048, 1024, 1024}));
  const auto state = scaler.state_dict();
  scaler.update(64.0);
  iterate(1.0F);
  scaler.load_state_dict(state);
  iterate(1.0F);
  at::removeCallback(handle);
  EXPECT_EQ(scales.size(), 1U);
  EXPECT_EQ(trackers.size(), 1U);
}

TEST(GradScalerScale, WorksWhenFirstUsedInInferenceMode) {
  GradScaler scaler({.init_scale = 8});
  {
    const c10::InferenceMode inference;
    scaler.scale(torch::ones({}));
  }
  const auto p = P(1);
  scaler.scale(p.sum()).backward();
  EXPECT_EQ(grad(p), 8.0F);
}

TEST(GradScalerScale, RefusesAnUndefinedTensor) {
  GradScaler scaler;
  expect_contains(error_of<c10::ValueError>([&] { scaler.scale(at::Tensor()); }),
                  "outputs must be a Tensor or an iterable of Tensors");
}

TEST(GradScalerGradients, Float16IsRefusedByNameWithNothingChanged) {
  for (const bool explicit_unscale : {true, false}) {
    auto scaler = ready(1024);
    const auto p = P(1, 1024);
    const auto half = torch::ones({1}, at::kHalf).requires_grad_();
    half.mutable_grad() = torch::ones({1}, at::kHalf);
    const auto optimizer = sgd({p, half});
    const auto text = error_of<c10::ValueError>(
        [&] { explicit_unscale ? scaler.unscale_(*optimizer) : (void)scaler.step(*optimizer); });
    expect_contains(text, "Attempting to unscale FP16 gradients");
    expect_contains(text, "parameter 1 of group 0, shape [1]");
    EXPECT_EQ(grad(p), 1024.0F);
    EXPECT_EQ(grad(half), 1.0F);
    half.mutable_grad() = at::Tensor();
    EXPECT_TRUE(scaler.step(*optimizer).applied());  // the state is still ready
    EXPECT_EQ(value(p), 0.0F);
  }
}

TEST(GradScalerGradients, BFloat16DoubleAndFloatMixInOneOptimizer) {
  auto scaler = ready(1024);
  std::vector<at::Tensor> parameters;
  for (const auto dtype : {at::kBFloat16, at::kDouble, at::kFloat}) {
    auto p = torch::ones({2}, dtype).requires_grad_();
    p.mutable_grad() = torch::full({2}, 1024, dtype);
    parameters.push_back(p);
  }
  const auto optimizer = sgd(parameters);
  scaler.unscale_(*optimizer);
  for (const auto& p : parameters) {
    EXPECT_TRUE(p.grad().eq(1).all().item<bool>()) << p.scalar_type();
    EXPECT_EQ(p.grad().scalar_type(), p.scalar_type());
  }
  EXPECT_TRUE(scaler.step(*optimizer).applied());
}

TEST(GradScalerGradients, DoubleKeepsValuesBeyondFloat32) {
  auto scaler = ready(1024);
  auto p = torch::ones({1}, at::kDouble).requires_grad_();
  p.mutable_grad() = torch::full({1}, 0x1p200, at::kDouble);
  const auto optimizer = sgd({p});
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(p.grad().item<double>(), 0x1p190);
}

TEST(GradScalerGradients, ComplexIsUnscaledInBothParts) {
  auto scaler = ready(1024);
  const auto one = c10::complex<float>(1, 1);
  auto p = torch::full({1}, one, at::kComplexFloat).requires_grad_();
  p.mutable_grad() = torch::full({1}, c10::complex<float>(1024, 1024), at::kComplexFloat);
  const auto optimizer = sgd({p}, 0.5);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_EQ(p.item<c10::complex<float>>(), c10::complex<float>(0.5, 0.5));
  scaler.update();
  p.mutable_grad() = torch::full({1}, c10::complex<float>(1, kInf), at::kComplexFloat);
  EXPECT_TRUE(scaler.step(*optimizer).skipped());
  EXPECT_EQ(p.item<c10::complex<float>>(), c10::complex<float>(0.5, 0.5));
}

at::Tensor sparse_gradient(float a, float b, bool coalesced) {
  const auto indices = torch::tensor({{0, coalesced ? 2 : 0}}, at::kLong);
  auto gradient = torch::sparse_coo_tensor(indices, torch::tensor({a, b}), {3});
  return coalesced ? gradient.coalesce() : gradient;
}

TEST(GradScalerGradients, SparseIsUnscaledInItsValues) {
  for (const bool coalesced : {true, false}) {
    auto scaler = ready(1024);
    auto p = torch::zeros({3}).requires_grad_();
    p.mutable_grad() = sparse_gradient(1024, 2048, coalesced);
    const auto optimizer = sgd({p});
    scaler.unscale_(*optimizer);
    EXPECT_EQ(p.grad().is_coalesced(), coalesced);
    EXPECT_TRUE(scaler.step(*optimizer).applied());
    const auto expected =
        coalesced ? torch::tensor({-1.0F, 0.0F, -2.0F}) : torch::tensor({-3.0F, 0.0F, 0.0F});
    EXPECT_TRUE(p.detach().equal(expected)) << p;
  }
}

TEST(GradScalerGradients, SparseInfIsFoundAndSparseFloat16Refused) {
  auto scaler = ready(1024);
  auto p = torch::zeros({3}).requires_grad_();
  p.mutable_grad() = sparse_gradient(1, kInf, true);
  const auto optimizer = sgd({p});
  EXPECT_TRUE(scaler.step(*optimizer).skipped());
  scaler.update();
  auto half = torch::zeros({3}, at::kHalf).requires_grad_();
  half.mutable_grad() = sparse_gradient(1, 1, false).to(at::kHalf);
  const auto other = sgd({half});
  expect_contains(error_of<c10::ValueError>([&] { scaler.step(*other); }), "FP16");
}

TEST(GradScalerGradients, EmptyAndNonContiguousOnesWork) {
  auto scaler = ready(4);
  auto empty = torch::zeros({0, 3}).requires_grad_();
  empty.mutable_grad() = torch::zeros({0, 3});
  auto strided = torch::zeros({2, 3}).requires_grad_();
  strided.mutable_grad() = torch::full({3, 2}, 8.0F).t();
  const auto optimizer = sgd({empty, strided});
  EXPECT_TRUE(scaler.step(*optimizer).applied());
  EXPECT_TRUE(strided.grad().eq(2).all().item<bool>());
  scaler.update();
  const auto only_empty = sgd({empty});
  EXPECT_TRUE(scaler.step(*only_empty).applied());
}

TEST(GradScalerGradients, TypeThatNoKernelUnscalesIsRefusedByNameWithNothingChanged) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  auto q = torch::zeros({2}).to(at::kFloat8_e5m2).requires_grad_();
  q.mutable_grad() = torch::ones({2}).to(at::kFloat8_e5m2);
  const auto optimizer = sgd({p, q});
  const auto text = error_of<c10::ValueError>([&] { scaler.step(*optimizer); });
  expect_contains(text, "parameter 1 of group 0, shape [2], is Float8_e5m2");
  EXPECT_EQ(grad(p), 1024.0F);
}

TEST(GradScalerGradients, ExpandedOneIsRefusedWithNothingChanged) {
  auto scaler = ready(1024);
  const auto p = P(1, 1024);
  auto q = torch::zeros({4}).requires_grad_();
  q.mutable_grad() = torch::ones({1}).expand({4});
  const auto optimizer = sgd({p, q});
  const auto text = error_of<c10::ValueError>([&] { scaler.unscale_(*optimizer); });
  expect_contains(text, "parameter 1 of group 0");
  expect_contains(text, "clone() it first");
  EXPECT_EQ(grad(p), 1024.0F);
}

TEST(GradScalerGradients, InverseIsTheFloatOfTheDoubleReciprocal) {
  const double scale = 3.0;  // 1/3 is not exact
  auto scaler = ready(scale);
  const auto p = P(1, 7.0F);
  const auto optimizer = sgd({p});
  scaler.unscale_(*optimizer);
  EXPECT_EQ(grad(p), 7.0F * static_cast<float>(1.0 / scale));
}

void iterate(GradScaler& scaler, const at::Tensor& p, torch::optim::SGD& optimizer, float gradient,
             int times = 1) {
  for (int i = 0; i < times; ++i) {
    set_grad(p, gradient);
    scaler.scale(torch::zeros({}));
    scaler.step(optimizer);
    scaler.update();
  }
}

TEST(GradScalerUpdate, StopsAtAFloorAndNeverHarmsTheWeights) {
  auto scaler = ready({.init_scale = 1, .warn_after_skips = 20});
  const Warnings warnings;
  const auto p = P(1);
  const auto optimizer = sgd({p});
  iterate(scaler, p, *optimizer, kInf, 160);
  EXPECT_EQ(scaler.get_scale(), 0x1p-14);
  EXPECT_EQ(warnings.texts().size(), 1U);
  EXPECT_EQ(warnings.count("20 iterations in a row were skipped"), 1);
  EXPECT_EQ(warnings.count("no usable scale"), 1);
  EXPECT_EQ(scaler.consecutive_skips(), 160);
  iterate(scaler, p, *optimizer, 0.0F);
  EXPECT_EQ(value(p), 1.0F);
  EXPECT_EQ(scaler.consecutive_skips(), 0);
}

TEST(GradScalerUpdate, WarnsAgainForANewRunOfSkipsAndNeverWhenAsked) {
  for (const int64_t limit : {3, 0}) {
    auto scaler = ready({.warn_after_skips = limit});
    const Warnings warnings;
    const auto p = P(1);
    const auto optimizer = sgd({p});
    for (int run = 0; run < 2; ++run) {
      iterate(scaler, p, *optimizer, kNan, 5);
      iterate(scaler, p, *optimizer, 0.0F);
    }
    EXPECT_EQ(warnings.texts().size(), limit == 0 ? 0U : 2U);
  }
}

TEST(GradScalerUpdate, FloorCanBeSetDownToWhereTheReciprocalIsFinite) {
  auto scaler = ready({.init_scale = 1, .min_scale = 0x1p-126});
  const Warnings warnings;
  const auto p = P(1);
  const auto optimizer = sgd({p});
  iterate(scaler, p, *optimizer, kInf, 160);
  EXPECT_EQ(scaler.get_scale(), 0x1p-126);
  iterate(scaler, p, *optimizer, 0.0F);
  EXPECT_EQ(value(p), 1.0F);
  EXPECT_EQ(scaler.get_min_scale(), 0x1p-126);
  // A small scale that is asked for lowers the default floor.
  EXPECT_EQ(GradScaler({.init_scale = 0x1p-20}).get_min_scale(), 0x1p-20);
}

TEST(GradScalerUpdate, NeverGrowsToInf) {
  auto scaler = ready({.init_scale = 0x1p126, .growth_interval = 1});
  const auto p = P(1);
  const auto optimizer = sgd({p}, 0.0);
  for (int i = 0; i < 6; ++i) {
    iterate(scaler, p, *optimizer, 0.0F);
    EXPECT_EQ(scaler.get_scale(), 0x1p127);
    EXPECT_EQ(tracker(scaler), 0);
  }
}

TEST(GradScalerUpdate, StopsGrowingAtTheCeiling) {
  auto scaler = ready({.init_scale = 4, .growth_interval = 1, .max_scale = 20});
  const auto p = P(1);
  const auto optimizer = sgd({p});
  std::vector<double> scales;
  for (int i = 0; i < 4; ++i) {
    iterate(scaler, p, *optimizer, 0.0F);
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{8, 16, 20, 20}));
}

TEST(GradScalerUpdate, GrowsAlsoWhenTheIntervalWasLoweredBelowTheRun) {
  auto scaler = ready({.init_scale = 8, .growth_interval = 5});
  const auto p = P(1);
  const auto optimizer = sgd({p});
  iterate(scaler, p, *optimizer, 0.0F, 4);
  EXPECT_EQ(tracker(scaler), 4);
  scaler.set_growth_interval(2);
  EXPECT_EQ(tracker(scaler), 4);
  std::vector<double> scales;
  for (int i = 0; i < 6; ++i) {
    iterate(scaler, p, *optimizer, 0.0F);
    scales.push_back(scaler.get_scale());
  }
  EXPECT_EQ(scales, (std::vector<double>{16, 16, 32, 32, 64, 64}));
}

TEST(GradScalerUpdate, HysteresisForgivesTheFirstOverflowsOfARun) {
  auto scaler = ready({.init_scale = 1024, .growth_interval = 2, .hysteresis = 2});
  const auto p = P(1);
  const auto optimizer = sgd({p});
  std::vector<double> scales;
  std::vector<int64_t> trackers;
  for (const float gradient : {kInf, 0.0F, kInf, kInf, kNan, 0.0F, 0.0F}) {
    iterate(scaler, p, *optimizer, gradient);
    scales.push_back(scaler.get_scale());
    trackers.push_back(tracker(scaler));
  }
  EXPECT_EQ(scales, (std::vector<double>{1024, 1024, 1024, 512, 256, 256, 512}));
  EXPECT_EQ(trackers, (std::vector<int64_t>{0, 1, 0, 0, 0, 1, 0}));
}

TEST(GradScalerUpdate, TakesANewScaleAndLeavesTheRun) {
  auto scaler = ready(1024);
  const auto p = P(1);
  const auto optimizer = sgd({p});
  iterate(scaler, p, *optimizer, 0.0F, 3);
  scaler.update(2.0);
  EXPECT_EQ(scaler.get_scale(), 2.0);
  EXPECT_EQ(tracker(scaler), 3);
  scaler.update(torch::full({}, 4.0F));
  EXPECT_EQ(scaler.get_scale(), 4.0);
  scaler.update(torch::full({1}, 8, at::kLong));  // one dimension and another type are fine
  EXPECT_EQ(scaler.get_scale(), 8.0);
  scaler.scale(torch::zeros({}));
  set_grad(p, 8);
  scaler.unscale_(*optimizer);
  scaler.update(16.0);  // clears the optimizer's state
  scaler.scale(torch::zeros({}));
  set_grad(p, 16);
  EXPECT_TRUE(scaler.step(*optimizer).applied());
}

TEST(GradScalerUpdate, ScaleSetOrLoadedBelowTheFloorIsTheFloorAndStillSafe) {
  for (const bool load : {false, true}) {
    auto scaler = ready(1024);
    if (load) {
      scaler.load_state_dict(ready(0x1p-20).state_dict());
    } else {
      scaler.update(0x1p-20);
    }
    EXPECT_EQ(scaler.get_min_scale(), 0x1p-20);
    const auto p = P(1);
    const auto optimizer = sgd({p});
    iterate(scaler, p, *optimizer, 1e35F);  // finite, but 1e35 / 2^-20 is not
    EXPECT_EQ(value(p), 1.0F);
    EXPECT_EQ(scaler.skipped_steps(), 1);
    EXPECT_EQ(scaler.get_scale(), 0x1p-20);
  }
}

TEST(GradScalerUpdate, RefusesANewScaleThatCannotWork) {
  auto scaler = ready(1024);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double wrong : {0.0, -1.0, nan, 1e39, 0x1p-127}) {
    EXPECT_THROW(scaler.update(wrong), c10::ValueError) << wrong;
  }
  const std::string reason = "new_scale should be a float or a 1-element Tensor";
  for (const auto& wrong : {torch::ones({2}), at::Tensor(), torch::ones({1}).requires_grad_(),
                            torch::ones({1}, at::TensorOptions().device(at::kMeta))}) {
    expect_contains(error_of<c10::ValueError>([&] { scaler.update(wrong); }), reason);
  }
  EXPECT_EQ(scaler.get_scale(), 1024.0);
}

TEST(GradScalerUpdate, NeedsACheckBetweenTwoUpdates) {
  auto scaler = ready(1024);
  const auto p = P(1, 1);
  const auto optimizer = sgd({p});
  scaler.step(*optimizer);
  scaler.update();
  expect_contains(error_of([&] { scaler.update(); }),
                  "No inf checks were recorded prior to update.");
}

}  // namespace
}  // namespace torchamp::test
